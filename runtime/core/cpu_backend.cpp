#include "runtime/core/cpu_backend.h"

#include <cmath>
#include <map>
#include <new>
#include <system_error>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/kv_dtype_names.h"
#include "runtime/core/cpu_op_maker.h"
#include "runtime/core/cpu_quota.h"
#include "runtime/core/red_zone.h"
#include "runtime/core/step_check.h"

namespace precast {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxArenaBytes = int64_t{1} << 46;

// Query rows × heads of an attention tile: enough to unpack each page once for many rows, few enough that their scores
// of a split (256 floats each) stay in the L2 cache; and a whole number of the kernels' tiles.
constexpr int kAttentionLines = 96;
constexpr int64_t kPartialBytes = int64_t{16} << 20;  // for partial states of attention, at least
constexpr int kItemsPerThread = 4;

CpuModel read_model(const Attributes& a) {
  CpuModel model{};
  const auto integer = [&a](const char* key, int64_t low, int64_t high) {
    return static_cast<int32_t>(a.integer(key, low, high));
  };
  model.limits.vocab_size = integer("vocab_size", 1, 1 << 26);
  model.limits.max_num_tokens = integer("max_num_tokens", 1, 1 << 20);
  model.limits.max_batch_size = integer("max_batch_size", 1, model.limits.max_num_tokens);
  model.limits.max_seq_len = integer("max_seq_len", 1, 1 << 26);
  model.limits.page_tokens = kPageTokens;
  model.num_layers = integer("num_layers", 1, 1 << 16);
  model.num_heads = integer("num_heads", 1, 1 << 12);
  model.num_kv_heads = integer("num_kv_heads", 1, model.num_heads);
  model.head_size = integer("head_size", 1, 1 << 12);
  CpuOpMaker::expect(model.num_heads % model.num_kv_heads == 0, "num_heads is no multiple of num_kv_heads");
  const std::string& name = a.text("kv_cache_dtype");
  const std::optional<KvDType> dtype = kv_dtype_named(name);
  CpuOpMaker::expect(dtype.has_value(), "kv_cache_dtype " + name + " is unknown");
  model.kv_dtype = *dtype;
  return model;
}

const KernelTable& kernels_for(const std::string& isa) {
  try {
    const std::string here = isa_level();
    if (isa != here) {
      throw EngineError("it was built for ISA " + isa + " and this CPU runs " + here + "; build it again here" +
                        (isa_supported(isa) ? ", or set PRECAST_ISA=" + isa : ""));
    }
    return kernel_table(here);
  } catch (const IsaError& error) {
    throw EngineError(error.what());
  }
}

std::string name_of(const Plan& plan, size_t op) {
  const PlanOp& o = plan.ops[op];
  const std::string output = o.outputs.empty() ? "" : " → " + plan.buffers[static_cast<size_t>(o.outputs[0])].name;
  return "op " + std::to_string(op) + " (" + o.kernel + output + ")";
}

// A value that is overwritten while somebody still wants it would make an engine compute nonsense: follow the slots.
void check_slots(const Plan& plan) {
  std::vector<int32_t> holds(plan.buffers.size(), -1);  // slot → buffer
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    for (const int32_t i : plan.ops[op].inputs) {
      const PlanBuffer& buffer = plan.buffers[static_cast<size_t>(i)];
      CpuOpMaker::expect(holds[static_cast<size_t>(buffer.slot)] == i,
                         name_of(plan, op) + " reads buffer " + buffer.name + ", which its slot does not hold by then");
      for (const int32_t o : plan.ops[op].outputs) {
        CpuOpMaker::expect(
            plan.buffers[static_cast<size_t>(o)].slot != buffer.slot || is_elementwise(plan.ops[op].kernel),
            name_of(plan, op) + " writes over its input " + buffer.name);
      }
    }
    for (const int32_t o : plan.ops[op].outputs)
      holds[static_cast<size_t>(plan.buffers[static_cast<size_t>(o)].slot)] = o;
  }
}

// The last op's output, which is f32 [S, vocab_size].
int32_t logits_buffer(const Plan& plan, int32_t vocab_size) {
  CpuOpMaker::expect(!plan.ops.empty() && plan.ops.back().outputs.size() == 1, "the plan computes nothing");
  const int32_t logits = plan.ops.back().outputs[0];
  const PlanBuffer& buffer = plan.buffers[static_cast<size_t>(logits)];
  CpuOpMaker::expect(!buffer.quantized && buffer.sampled_rows && buffer.columns == vocab_size,
                     "the last op does not write logits, f32 [S, vocab_size]");
  return logits;
}

CpuValue make_value(const PlanBuffer& buffer, const KernelTable& kernels) {
  CpuValue value{buffer.quantized, buffer.sampled_rows, buffer.columns, buffer.group};
  if (buffer.quantized) {
    CpuOpMaker::expect(buffer.group % 4 == 0, "buffer " + buffer.name + " has a group that is no multiple of 4");
    const int64_t k = padded_k(WeightKind::i8, buffer.columns, buffer.group);
    value.k = static_cast<int32_t>(k);
    value.tile_bytes = quantized_tile_bytes(k, buffer.group, kernels.tile_rows_i8);
  } else {
    value.ld = round_up(buffer.columns, kPanel);
  }
  return value;
}

class PlanBackend final : public CpuBackend {
 public:
  PlanBackend(std::shared_ptr<const EngineFile> file, const KernelTable& kernels, const CpuModel& model,
              int num_threads)
      : context_{.file = std::move(file),
                 .kernels = kernels,
                 .model = model,
                 .pool = ThreadPool(num_threads),
                 .pools = {},
                 .kv_layers = {},
                 .values = {},
                 .rope_tables = {},
                 .attention = {},
                 .scratch = {},
                 .workspace = {}} {
    plan_kv_layers();
    plan_arena();
    plan_attention();
    make_ops();
    place_rope_tables();
    positions_.reserve(static_cast<size_t>(model.limits.max_num_tokens));
    row_tables_.reserve(static_cast<size_t>(model.limits.max_num_tokens));
  }

  const ModelLimits& limits() const override { return context_.model.limits; }

  int num_threads() const override { return context_.pool.num_threads(); }
  void parallel_for(int count, const std::function<void(int, int)>& fn) override {
    context_.pool.parallel_for(count, fn);
  }

  void allocate_pages(const std::vector<int32_t>& num_pages) override {
    if (num_pages.size() != context_.pools.size()) throw std::invalid_argument("every layer group needs a KV pool");
    for (size_t g = 0; g < num_pages.size(); ++g) {
      KvPool& pool = context_.pools[g];
      if (num_pages[g] < 1 || num_pages[g] > kMaxArenaBytes / pool.page_bytes()) throw std::bad_alloc();
      pool.allocate(num_pages[g]);
    }
    num_pages_ = num_pages;
  }

  void load_pages(const std::vector<PageLoad>& loads) override {
    for (size_t i = 0; i < loads.size();) {
      const PageLoad& load = loads[i];
      check_load(load);
      // Pages that follow each other both there and here are one piece.
      size_t bytes = load.bytes.size(), n = 1;
      for (; i + n < loads.size() && follows(loads[i + n], loads[i + n - 1]); ++n) bytes += loads[i + n].bytes.size();
      const KvPool& pool = context_.pools[static_cast<size_t>(load.group)];
      context_.file->put({load.bytes.data(), bytes}, pool.block(load.page, 0, 0));
      i += n;
    }
  }

  std::span<const uint8_t> page(int32_t group, PageId page) const override {
    const auto g = static_cast<size_t>(group);
    if (group < 0 || g >= num_pages_.size() || page < 0 || page >= num_pages_[g]) {
      throw std::invalid_argument("a page lies outside the pools");
    }
    const KvPool& pool = context_.pools[g];
    return {reinterpret_cast<const uint8_t*>(pool.block(page, 0, 0)), static_cast<size_t>(pool.page_bytes())};
  }

  void run(const StepBatch& batch, float* logits) override {
    const CpuStep step = begin(batch, logits);
    for (const std::unique_ptr<CpuOp>& op : ops_) op->run(step);
  }

  void run_timed(const StepBatch& batch, float* logits, std::span<double> op_seconds) override {
    if (op_seconds.size() != ops_.size()) throw std::invalid_argument("op_seconds has not one place for each op");
    const CpuStep step = begin(batch, logits);
    for (size_t i = 0; i < ops_.size(); ++i) {
      const Clock::time_point began = Clock::now();
      ops_[i]->run(step);
      op_seconds[i] += std::chrono::duration<double>(Clock::now() - began).count();
    }
  }

 private:
  CpuStep begin(const StepBatch& batch, float* logits) {
    check_step(batch, limits(), num_pages_);
    for (const PageCopy& copy : batch.copies) copy_page(copy);
    positions_.clear();
    row_tables_.clear();
    for (const StepSequence& sequence : batch.sequences) {
      for (int32_t i = 0; i < sequence.num_rows; ++i) {
        positions_.push_back(sequence.first_position + i);
        row_tables_.push_back(sequence.block_table);
      }
    }
    schedule_attention(batch, context_.attention.limits, schedule_);
    compute_rope_tables();
    return {batch, positions_.data(), row_tables_.data(), schedule_, logits};
  }
  void check_load(const PageLoad& load) const {
    if (load.bytes.size() != page(load.group, load.page).size()) {
      throw std::invalid_argument("a page to load has another size");
    }
  }
  bool follows(const PageLoad& next, const PageLoad& load) const {
    if (next.group != load.group || next.page != load.page + 1) return false;
    check_load(next);
    return next.bytes.data() == load.bytes.data() + load.bytes.size();
  }

  // Tokens lie across a page: all of it is one copy, and what lies behind num_tokens is overwritten before it is read.
  void copy_page(const PageCopy& copy) {
    const KvPool& pool = context_.pools[static_cast<size_t>(copy.group)];
    if (copy.from == copy.to || copy.num_tokens == 0) return;
    std::copy_n(pool.block(copy.from, 0, 0), pool.page_bytes(), pool.block(copy.to, 0, 0));
  }

  // Layers whose attention has the same window form a group. A window that max_seq_len never fills is none.
  void plan_kv_layers() {
    const Plan& plan = context_.file->plan();
    CpuModel& model = context_.model;
    std::vector<int32_t> windows(static_cast<size_t>(model.num_layers), -1);
    for (size_t i = 0; i < plan.ops.size(); ++i) {
      if (plan.ops[i].kernel != "paged_attention") continue;
      try {
        const Attributes& attributes = plan.ops[i].attributes;
        const auto window = static_cast<int32_t>(attributes.integer("window", 0, 1 << 30));
        int32_t& known = windows[static_cast<size_t>(attributes.integer("layer", 0, model.num_layers - 1))];
        const int32_t effective = window < model.limits.max_seq_len ? window : 0;
        CpuOpMaker::expect(known == -1 || known == effective, "its layer has attention with another window");
        known = effective;
      } catch (const EngineError& error) {
        throw EngineError(name_of(plan, i) + ": " + error.what());
      }
    }
    std::map<int32_t, int32_t> layers;  // by window
    for (const int32_t window : windows) ++layers[std::max(window, 0)];
    model.limits.groups.clear();
    for (const auto& [window, count] : layers) {
      context_.pools.emplace_back(count, model.num_kv_heads, model.head_size, model.kv_dtype);
      model.limits.groups.push_back({window, count, context_.pools.back().page_bytes()});
    }
    std::vector<int> next(layers.size(), 0);
    for (const int32_t window : windows) {
      const auto group = static_cast<size_t>(std::distance(layers.begin(), layers.find(std::max(window, 0))));
      context_.kv_layers.push_back({group, next[group]++});
    }
  }

  void plan_arena() {
    const Plan& plan = context_.file->plan();
    check_slots(plan);
    const PlanBuffer& logits = plan.buffers[static_cast<size_t>(logits_buffer(plan, limits().vocab_size))];
    // What shares the logits' slot and shape lies where they do: elementwise ops behind the head work in place.
    const auto in_logits = [&logits](const PlanBuffer& buffer) {
      return buffer.slot == logits.slot && !buffer.quantized && buffer.sampled_rows && buffer.columns == logits.columns;
    };
    std::vector<int64_t> slot_bytes(plan.buffers.size(), 0), slot_begin(plan.buffers.size(), 0);
    const int64_t rows = limits().max_num_tokens;
    for (const PlanBuffer& buffer : plan.buffers) {
      const CpuValue value = make_value(buffer, context_.kernels);
      const int64_t bytes =
          value.quantized ? divide_up(rows, context_.kernels.tile_rows_i8) * value.tile_bytes : rows * value.ld * 4;
      context_.values.push_back(value);
      if (in_logits(buffer)) continue;
      int64_t& slot = slot_bytes[static_cast<size_t>(buffer.slot)];
      slot = std::max(slot, bytes);
    }
    int64_t total = 0;
    for (size_t i = 0; i < slot_bytes.size(); ++i) {
      slot_begin[i] = total;
      total += round_up(slot_bytes[i], 64) + static_cast<int64_t>(kRedZone);
      CpuOpMaker::expect(total <= kMaxArenaBytes, "its activations take more memory than any machine has");
    }
    arena_ = Memory(static_cast<size_t>(total));
    for (size_t i = 0; kRedZone > 0 && i < slot_bytes.size(); ++i) {
      red_zones_.emplace_back(arena_.data() + slot_begin[i] + slot_bytes[i]);
    }
    for (size_t i = 0; i < plan.buffers.size(); ++i) {
      CpuValue& value = context_.values[i];
      if (in_logits(plan.buffers[i])) {
        value.ld = limits().vocab_size;
      } else {
        value.data = arena_.data() + slot_begin[static_cast<size_t>(plan.buffers[i].slot)];
      }
    }
  }

  void plan_attention() {
    const CpuModel& model = context_.model;
    const int threads = context_.pool.num_threads();
    const int64_t row_bytes = 4 * model.num_heads * attention_partial_floats(model.head_size);
    const int64_t max_splits = divide_up(limits().max_seq_len, kContextSplit);
    AttentionLimits& limits = context_.attention.limits;
    limits.tile_rows = std::max(1, kAttentionLines / model.heads_per_kv());
    limits.wanted_items = threads == 1 ? 0 : kItemsPerThread * threads;
    limits.num_kv_heads = model.num_kv_heads;
    limits.max_partials = std::max(max_splits, kPartialBytes / row_bytes);
    if (threads == 1) return;
    context_.attention.partials = Memory(static_cast<size_t>(limits.max_partials * row_bytes));
    context_.attention.done = std::make_unique<std::atomic<int32_t>[]>(static_cast<size_t>(limits.wanted_items));
  }

  void make_ops() {
    const Plan& plan = context_.file->plan();
    int64_t scratch = 0, workspace = 0;
    for (size_t i = 0; i < plan.ops.size(); ++i) {
      try {
        ops_.push_back(CpuOpMaker(context_, plan.ops[i]).make());
        scratch = std::max(scratch, ops_.back()->scratch_bytes());
        workspace = std::max(workspace, ops_.back()->workspace_bytes());
        CpuOpMaker::expect(workspace <= kMaxArenaBytes, "its activations take more memory than any machine has");
      } catch (const EngineError& error) {
        throw EngineError(name_of(plan, i) + ": " + error.what());
      }
    }
    context_.workspace = Memory(static_cast<size_t>(workspace));
    for (int i = 0; i < context_.pool.num_threads(); ++i) context_.scratch.emplace_back(static_cast<size_t>(scratch));
  }

  void place_rope_tables() {
    int64_t total = 0;
    for (const RopeTable& table : context_.rope_tables) total += table.floats(limits().max_num_tokens);
    rope_memory_ = Memory(2 * static_cast<size_t>(total) * 4);
    auto* p = reinterpret_cast<float*>(rope_memory_.data());
    for (RopeTable& table : context_.rope_tables) {
      const int64_t floats = table.floats(limits().max_num_tokens);
      table.cos = p;
      table.sin = p + floats;
      p += 2 * floats;
    }
  }

  // The angle is rounded to f32, as the frameworks that trained the models do; its cosine and sine are not.
  void compute_rope_tables() {
    for (const RopeTable& table : context_.rope_tables) {
      const int64_t half = table.rotary_dim / 2;
      context_.for_rows(static_cast<int64_t>(positions_.size()), 16 * half, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin * half; i < end * half; ++i) {
          const float angle =
              static_cast<float>(positions_[static_cast<size_t>(i / half)]) * table.inverse_frequencies[i % half];
          table.cos[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * table.attention_factor);
          table.sin[i] = static_cast<float>(std::sin(static_cast<double>(angle)) * table.attention_factor);
        }
      });
    }
  }

  CpuContext context_;
  std::vector<int32_t> num_pages_;  // of each layer group's pool; none before allocate_pages
  Memory arena_, rope_memory_;
  std::vector<RedZone> red_zones_;  // behind each slot of the arena
  std::vector<std::unique_ptr<CpuOp>> ops_;
  // Of the step that runs.
  std::vector<int32_t> positions_;
  std::vector<int32_t> row_tables_;
  AttentionSchedule schedule_;
};

}  // namespace

std::unique_ptr<CpuBackend> make_cpu_backend(std::shared_ptr<const EngineFile> file, int num_threads) {
  const int threads = num_threads == 0 ? available_cpus() : num_threads;
  if (threads < 1 || threads > kMaxThreads) {
    throw EngineError("num_threads must be 0 (all that this process may use) or 1 … " + std::to_string(kMaxThreads));
  }
  const std::string path = file->path();
  try {
    const Attributes& attributes = file->plan().attributes;
    const KernelTable& kernels = kernels_for(attributes.text("isa"));
    return std::make_unique<PlanBackend>(std::move(file), kernels, read_model(attributes), threads);
  } catch (const EngineError& error) {
    throw EngineError(path + " will not load: " + error.what());
  } catch (const std::system_error&) {
    throw EngineError("this process cannot start " + std::to_string(threads) + " threads");
  } catch (const std::bad_alloc&) {
    throw EngineError(path + " will not load: there is not enough memory for its activations");
  }
}

}  // namespace precast
