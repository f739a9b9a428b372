// paged_attention: items of (tile of query rows, KV head), or of one context split of these.
#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

constexpr int kSplitPages = kContextSplit / kPageTokens;

class PagedAttention final : public CpuOp {
 public:
  explicit PagedAttention(const CpuOpMaker& maker)
      : context_(maker.context),
        q_(maker.f32_input(0, columns(context_.model), false)),
        out_(maker.f32_output(columns(context_.model), false)),
        layer_(context_.kv_layers[static_cast<size_t>(maker.layer())]) {
    const CpuModel& model = context_.model;
    const Attributes& attributes = maker.op.attributes;
    shape_ = {.head_size = model.head_size,
              .heads_per_kv = model.heads_per_kv(),
              .scale = maker.f32_attribute("scale"),
              .kv_dtype = model.kv_dtype,
              .window = static_cast<int32_t>(attributes.integer("window", 0, 1 << 30)),
              .softcap = maker.f32_attribute("softcap")};
    CpuOpMaker::expect(shape_.softcap >= 0, "attribute softcap is negative");
    const bool alibi = attributes.integer("alibi", 0, 1) == 1;
    maker.expect_counts(1, alibi ? 1 : 0);
    if (alibi) slopes_ = maker.vector(0, model.num_heads);
    stride_ = attention_partial_floats(model.head_size);
    const int64_t lines = int64_t{context_.attention.limits.tile_rows} * shape_.heads_per_kv;
    pages_bytes_ = round_up(int64_t{8} * (model.max_pages() + kSplitPages), 64);
    state_floats_ = round_up(lines * stride_, 16);
    kernel_floats_ = context_.kernels.attention_scratch_floats(shape_, context_.attention.limits.tile_rows);
  }

  int64_t scratch_bytes() const override { return pages_bytes_ + 4 * (2 * state_floats_ + kernel_floats_); }

  void run(const CpuStep& step) override {
    const AttentionSchedule& schedule = step.attention;
    const int heads = context_.model.num_kv_heads;
    if (schedule.split) {
      context_.pool.parallel_for(static_cast<int>(schedule.items.size()) * heads, [&](int i, int thread) {
        const AttentionItem& item = schedule.items[static_cast<size_t>(i / heads)];
        run_split(step, schedule.tiles[static_cast<size_t>(item.tile)], item, i % heads, scratch(thread));
      });
    } else {
      context_.pool.parallel_for(static_cast<int>(schedule.tiles.size()) * heads, [&](int i, int thread) {
        run_tile(step, schedule.tiles[static_cast<size_t>(i / heads)], i % heads, scratch(thread));
      });
    }
  }

 private:
  struct Scratch {
    const void **pages, **ahead;
    float *state, *partial, *kernel;
  };

  static int64_t columns(const CpuModel& model) { return int64_t{model.num_heads} * model.head_size; }

  Scratch scratch(int thread) const {
    std::byte* p = context_.scratch_of(thread);
    auto* state = reinterpret_cast<float*>(p + pages_bytes_);
    auto* pages = reinterpret_cast<const void**>(p);
    return {pages, pages + context_.model.max_pages(), state, state + state_floats_, state + 2 * state_floats_};
  }

  int count(const AttentionTile& tile) const { return tile.rows * shape_.heads_per_kv; }

  // The first position that a row of the tile sees; splits before it are skipped.
  int first_seen(const AttentionTile& tile) const {
    return shape_.window == 0 ? 0 : std::max(0, tile.first_position - shape_.window + 1);
  }

  struct Pages {
    int begin, end;
  };
  // Of a context split, those that a row of the tile sees.
  Pages pages_of(const AttentionTile& tile, int split) const {
    return {std::max(split * kSplitPages, first_seen(tile) / kPageTokens),
            std::min((tile.first_position + tile.rows - 1) / kPageTokens + 1, (split + 1) * kSplitPages)};
  }

  // → to, one behind the other; returns how many.
  int find(const CpuStep& step, const AttentionTile& tile, int head, Pages pages, const void** to) const {
    const PageId* table = step.batch.block_tables[layer_.group].data() + tile.block_table;
    for (int j = pages.begin; j < pages.end; ++j) {
      to[j - pages.begin] = context_.pools[layer_.group].block(table[j], layer_.index, head);
    }
    return std::max(0, pages.end - pages.begin);
  }

  void partial(const CpuStep& step, const AttentionTile& tile, int head, int split, const Scratch& s, float* to) const {
    const Pages pages = pages_of(tile, split);
    find(step, tile, head, pages, s.pages + pages.begin);
    // What probably comes next, for this thread or another: the next split, or the next head's first.
    int ahead = 0;
    if (split + 1 < tile.splits) {
      ahead = find(step, tile, head, pages_of(tile, split + 1), s.ahead);
    } else if (head + 1 < context_.model.num_kv_heads) {
      ahead = find(step, tile, head + 1, pages_of(tile, first_seen(tile) / kContextSplit), s.ahead);
    }
    const float* q = q_.row(tile.first_row) + int64_t{head} * shape_.heads_per_kv * shape_.head_size;
    const float* slopes = slopes_ == nullptr ? nullptr : slopes_ + int64_t{head} * shape_.heads_per_kv;
    context_.kernels.attention_partial(
        shape_, {q, q_.ld, tile.rows, tile.first_position, s.pages, slopes, s.ahead, ahead}, split, to, s.kernel);
  }

  void merge(const AttentionTile& tile, float* state, const float* partial) const {
    context_.kernels.attention_merge(shape_.head_size, count(tile), state, partial);
  }

  void clear(const AttentionTile& tile, float* state) const {
    for (int i = 0; i < count(tile); ++i) state[i * stride_ + 1] = 0.0f;  // l = 0: empty
  }

  void finish(const AttentionTile& tile, int head, const float* state) const {
    for (int i = 0; i < count(tile); ++i) {
      const int64_t row = tile.first_row + i / shape_.heads_per_kv;
      const int64_t h = int64_t{head} * shape_.heads_per_kv + i % shape_.heads_per_kv;
      context_.kernels.attention_finish(shape_.head_size, state + i * stride_, out_.row(row) + h * shape_.head_size);
      if (h == 0) out_.clear_padding(row);
    }
  }

  void run_tile(const CpuStep& step, const AttentionTile& tile, int head, const Scratch& s) const {
    const int first = first_seen(tile) / kContextSplit;
    partial(step, tile, head, first, s, s.state);  // what merging it into empty states gives
    for (int split = first + 1; split < tile.splits; ++split) {
      partial(step, tile, head, split, s, s.partial);
      merge(tile, s.state, s.partial);
    }
    finish(tile, head, s.state);
  }

  // Whoever does the last split of a tile and head merges them all, in rising order: no second round of work is needed.
  void run_split(const CpuStep& step, const AttentionTile& tile, const AttentionItem& item, int head,
                 const Scratch& s) const {
    const int64_t heads = context_.model.num_kv_heads, size = count(tile) * stride_;
    float* first = reinterpret_cast<float*>(context_.attention.partials.data()) +
                   (tile.partials * heads + int64_t{head} * tile.splits * tile.rows) * shape_.heads_per_kv * stride_;
    const int first_split = first_seen(tile) / kContextSplit;
    if (item.split >= first_split) partial(step, tile, head, item.split, s, first + item.split * size);
    std::atomic<int32_t>& done = context_.attention.done[static_cast<size_t>(item.tile * heads + head)];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < tile.splits) return;
    done.store(0, std::memory_order_relaxed);
    clear(tile, s.state);
    for (int split = first_split; split < tile.splits; ++split) merge(tile, s.state, first + split * size);
    finish(tile, head, s.state);
  }

  CpuContext& context_;
  const CpuValue &q_, &out_;
  KvLayer layer_;
  AttentionShape shape_;
  const float* slopes_ = nullptr;  // [num_heads]
  int64_t stride_, pages_bytes_, state_floats_, kernel_floats_;
};

}  // namespace

std::unique_ptr<CpuOp> make_paged_attention(const CpuOpMaker& maker) {
  maker.expect_counts(1, maker.op.weights.size());
  return std::make_unique<PagedAttention>(maker);
}

}  // namespace precast
