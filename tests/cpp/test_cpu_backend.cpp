// Steps of a one-layer model with random weights, f32 and int8, on several threads: what the sanitizers watch.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/kernels.h"
#include "runtime/core/cpu_backend.h"
#include "tests/cpp/engine_bytes.h"

namespace precast {
namespace {

constexpr int kVocab = 50, kHidden = 32, kHeads = 4, kKvHeads = 2, kHeadSize = 8,
              kQkv = (kHeads + 2 * kKvHeads) * kHeadSize, kExperts = 6, kExpert = 16;

struct Buffer {
  const char* name;
  bool quantized, sampled;
  uint32_t columns;
};

void attribute(ByteWriter& w, const char* key, int64_t value) { w.text(key).number<uint8_t>(0).number(value); }
void attribute(ByteWriter& w, const char* key, double value) { w.text(key).number<uint8_t>(1).number(value); }
void attribute(ByteWriter& w, const char* key, const char* value) { w.text(key).number<uint8_t>(2).text(value); }

void operands(ByteWriter& w, const std::vector<uint32_t>& list) {
  w.number(static_cast<uint32_t>(list.size()));
  for (const uint32_t i : list) w.number(i);
}

void op(ByteWriter& w, const char* kernel, const std::vector<uint32_t>& inputs, uint32_t output,
        const std::vector<std::string>& weights, uint32_t attributes) {
  w.text(kernel);
  operands(w, inputs);
  operands(w, {output});
  w.number(static_cast<uint32_t>(weights.size()));
  for (const std::string& name : weights) w.text(name);
  w.number(attributes);
}

void linear(ByteWriter& w, const std::vector<uint32_t>& inputs, uint32_t output,
            const std::vector<std::string>& weights, int64_t n, int64_t k, const char* epilogue) {
  op(w, "linear", inputs, output, weights, 4);
  attribute(w, "n", n);
  attribute(w, "k", k);
  attribute(w, "has_bias", int64_t{0});
  attribute(w, "epilogue", epilogue);
}

// Whether the model has what Llama lacks: learned positions, layer norms, norms of q and k, windows, caps, slopes,
// experts, and capped logits.
enum class Kind { plain, rich };

void model_attributes(ByteWriter& w, const std::string& isa) {
  w.number<uint32_t>(11);
  attribute(w, "isa", isa.c_str());
  attribute(w, "kv_cache_dtype", "bfloat16");
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", kVocab}, {"hidden_size", kHidden},   {"num_layers", 1},
      {"num_heads", kHeads},  {"num_kv_heads", kKvHeads}, {"head_size", kHeadSize},
      {"max_batch_size", 8},  {"max_num_tokens", 600},    {"max_seq_len", 1024},
  };
  for (const auto& [key, value] : sizes) attribute(w, key, value);
}

void embed(ByteWriter& w, Kind kind) {
  op(w, "embed", {}, 0,
     kind == Kind::rich ? std::vector<std::string>{"table", "positions"} : std::vector<std::string>{"table"}, 2);
  attribute(w, "scale", kind == Kind::rich ? 1.5 : 1.0);
  attribute(w, "learned_positions", int64_t{kind == Kind::rich});
}

void norm(ByteWriter& w, Kind kind, uint32_t input, uint32_t output) {
  if (kind == Kind::plain) {
    op(w, "rms_norm", {input}, output, {"gain"}, 1);
  } else {
    op(w, "layer_norm", {input}, output, {"gain", "gain"}, 3);
    attribute(w, "has_gain", int64_t{1});
    attribute(w, "has_bias", int64_t{1});
  }
  attribute(w, "epsilon", 1e-5);
}

void attention(ByteWriter& w, Kind kind, uint32_t qkv, uint32_t q, uint32_t y) {
  const bool rich = kind == Kind::rich;
  op(w, "rope_kv_append", {qkv}, q,
     rich ? std::vector<std::string>{"frequencies", "head_gain", "head_gain"} : std::vector<std::string>{"frequencies"},
     6);
  attribute(w, "layer", int64_t{0});
  attribute(w, "rotary_dim", int64_t{8});
  attribute(w, "attention_factor", 1.0);
  attribute(w, "clip", rich ? 2.0 : 0.0);
  attribute(w, "qk_norm", rich ? "rms_head" : "none");
  attribute(w, "epsilon", 1e-5);
  op(w, "paged_attention", {q}, y, rich ? std::vector<std::string>{"slopes"} : std::vector<std::string>{}, 5);
  attribute(w, "layer", int64_t{0});
  attribute(w, "scale", 0.35);
  attribute(w, "window", int64_t{rich ? 300 : 0});
  attribute(w, "softcap", rich ? 5.0 : 0.0);
  attribute(w, "alibi", int64_t{rich});
}

void moe(ByteWriter& w, uint32_t input, uint32_t output) {
  op(w, "moe", {input}, output,
     {"router", "gate_up", "gate_up.scale", "proj", "shared.gate_up", "shared.proj", "shared.gate"}, 8);
  attribute(w, "num_experts", int64_t{kExperts});
  attribute(w, "top_k", int64_t{2});
  attribute(w, "norm_topk_prob", int64_t{1});
  attribute(w, "intermediate_size", int64_t{kExpert});
  attribute(w, "shared_intermediate_size", int64_t{kExpert});
  attribute(w, "shared_gate", int64_t{1});
  attribute(w, "activation", "gelu");
  attribute(w, "activation_group_size", int64_t{0});
}

// x = embed; y = x + dense(attention(qkv(norm(x)))); [y = experts(y);] logits = head(norm(rows of y)). Each buffer has
// its own slot, but for the logits, which a softcap bounds in place.
std::vector<uint8_t> plan_bytes(const std::string& isa, Kind kind) {
  const bool rich = kind == Kind::rich;
  ByteWriter w;
  model_attributes(w, isa);
  const Buffer buffers[] = {{"x", false, false, kHidden},
                            {"normed", true, false, kHidden},
                            {"qkv", false, false, kQkv},
                            {"q", false, false, kHeads * kHeadSize},
                            {"attention", false, false, kHeads * kHeadSize},
                            {"y", false, false, kHidden},
                            {"last", false, true, kHidden},
                            {"last.normed", false, true, kHidden},
                            {"experts", false, false, kHidden},
                            {"logits", false, true, kVocab},
                            {"capped", false, true, kVocab}};
  w.number<uint32_t>(std::size(buffers));
  for (uint32_t i = 0; i < std::size(buffers); ++i) {
    w.text(buffers[i].name).number<uint8_t>(buffers[i].quantized).number<uint8_t>(buffers[i].sampled);
    w.number<uint32_t>(buffers[i].columns).number<int32_t>(0).number<uint32_t>(std::min(i, 9u));
  }
  w.number<uint32_t>(rich ? 11 : 9);
  embed(w, kind);
  norm(w, kind, 0, 1);
  linear(w, {1}, 2, {"qkv", "qkv.scale"}, kQkv, kHidden, "none");
  attention(w, kind, 2, 3, 4);
  linear(w, {4, 0}, 5, {"dense"}, kHidden, kHeads * kHeadSize, "add");
  if (rich) moe(w, 5, 8);
  op(w, "gather_rows", {rich ? 8u : 5u}, 6, {}, 0);
  norm(w, kind, 6, 7);
  linear(w, {7}, 9, {"head"}, kVocab, kHidden, "none");
  if (rich) {
    op(w, "softcap", {9}, 10, {}, 1);
    attribute(w, "cap", 3.0);
  }
  return w.bytes;
}

std::vector<uint8_t> random_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  ByteWriter w;
  for (size_t i = 0; i < n; ++i) w.number(static_cast<float>(random()) / 2147483648.0f - 1.0f);
  return w.bytes;
}

// Packed int8 weights, and scales for them.
std::vector<uint8_t> random_bytes(size_t n) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 251 + 2);
  return bytes;
}
std::vector<uint8_t> equal_floats(size_t n, float value) {
  ByteWriter w;
  for (size_t i = 0; i < n; ++i) w.number(value);
  return w.bytes;
}

std::shared_ptr<const EngineFile> small_model(Kind kind) {
  const std::string isa = isa_level();
  const std::string i8 = kernel_table(isa).weights_i8;
  const std::vector<uint8_t> file = engine_bytes({
      {"plan", "plan.v0", plan_bytes(isa, kind)},
      {"table", "rows.f32", random_floats(kVocab * kHidden, 1)},
      {"gain", "vector.f32", random_floats(kHidden, 2)},
      {"positions", "rows.f32", random_floats(1024 * kHidden, 6)},
      {"qkv", i8, random_bytes(size_t{kQkv} * kHidden)},
      {"qkv.scale", "vector.f32", equal_floats(kQkv, 0.01f)},
      {"head_gain", "vector.f32", random_floats(kHeadSize, 7)},
      {"slopes", "vector.f32", random_floats(kHeads, 8)},
      {"router", "panel16.f32", random_floats(16 * kHidden, 9)},
      {"gate_up", i8, random_bytes(size_t{kExperts} * 2 * kExpert * kHidden)},
      {"gate_up.scale", "vector.f32", equal_floats(kExperts * 2 * kExpert, 0.002f)},
      {"proj", "panel16.f32", random_floats(size_t{kExperts} * kHidden * kExpert, 13)},
      {"shared.gate_up", "panel16.f32", random_floats(2 * kExpert * kHidden, 10)},
      {"shared.proj", "panel16.f32", random_floats(kHidden * kExpert, 11)},
      {"shared.gate", "panel16.f32", random_floats(16 * kHidden, 12)},
      {"frequencies", "vector.f32", random_floats(4, 3)},
      {"dense", "panel16.f32", random_floats(kHidden * kHeads * kHeadSize, 4)},
      {"head", "panel16.f32", random_floats(64 * kHidden, 5)},
  });
  char path[] = "/tmp/precast_test_XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  REQUIRE(::write(fd, file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  ::close(fd);
  auto opened = EngineFile::open(path);
  std::remove(path);
  return opened;
}

// Logits of the last row of each of `batch` sequences of `length` tokens, fed in chunks of `chunk`.
std::vector<float> last_logits(const std::shared_ptr<const EngineFile>& file, int threads, int batch, int length,
                               int chunk) {
  const auto backend = make_cpu_backend(file, threads);
  const int pages = (length + kPageTokens - 1) / kPageTokens;
  backend->allocate_pages({batch * pages});
  std::vector<float> logits(static_cast<size_t>(batch) * kVocab);
  for (int at = 0; at < length; at += chunk) {
    const int rows = std::min(chunk, length - at);
    StepBatch step;
    step.block_tables.emplace_back();
    for (int i = 0; i < batch; ++i) {
      step.sequences.push_back({i * rows, rows, at, i * pages});
      for (int r = 0; r < rows; ++r) step.tokens.push_back((i * 7 + (at + r) * 13) % kVocab);
      for (int j = 0; j < pages; ++j) step.block_tables[0].push_back(j * batch + i);
      step.logit_rows.push_back((i + 1) * rows - 1);
    }
    backend->run(step, logits.data());
  }
  return logits;
}

TEST_CASE("logits are the same bits on any number of threads, in any chunks and company") {
  Kind kind = Kind::plain;
  SUBCASE("as Llama") {}
  SUBCASE("with everything else") { kind = Kind::rich; }
  const auto file = small_model(kind);
  const std::vector<float> expected = last_logits(file, 1, 3, 530, 100);
  for (const float logit : expected) CHECK(std::isfinite(logit));
  for (const int threads : {1, 2, 4}) {
    for (const int chunk : {200, 33, 10}) CHECK(last_logits(file, threads, 3, 530, chunk) == expected);
    // Alone, the context splits of its few heads are items of their own.
    const std::vector<float> first(expected.begin(), expected.begin() + kVocab);
    CHECK(last_logits(file, threads, 1, 530, 176) == first);
    CHECK(last_logits(file, threads, 1, 530, 3) == first);
  }
}

TEST_CASE("a step that breaks a limit changes nothing and is refused") {
  const auto backend = make_cpu_backend(small_model(Kind::plain), 2);
  std::vector<float> logits(kVocab);
  StepBatch step{{1}, {{0, 1, 0, 0}}, {{0}}, {}, {0}};
  CHECK_THROWS_AS(backend->run(step, logits.data()), std::invalid_argument);  // no pages yet
  backend->allocate_pages({2});
  backend->run(step, logits.data());
  step.tokens[0] = kVocab;
  CHECK_THROWS_AS(backend->run(step, logits.data()), std::invalid_argument);
  step.tokens[0] = 0;
  step.sequences[0].first_position = std::numeric_limits<int32_t>::max();
  CHECK_THROWS_AS(backend->run(step, logits.data()), std::invalid_argument);
  step.sequences[0].first_position = 0;
  for (const PageCopy& copy :
       {PageCopy{0, 0, 2, 1}, PageCopy{0, -1, 1, 1}, PageCopy{1, 0, 1, 1}, PageCopy{0, 0, 1, 33}}) {
    step.copies = {copy};
    CHECK_THROWS_AS(backend->run(step, logits.data()), std::invalid_argument);
  }
  step.copies = {{0, 1, 0, 32}};
  backend->run(step, logits.data());
  CHECK_THROWS_AS(backend->allocate_pages({-1}), std::bad_alloc);
  CHECK_THROWS_AS(backend->allocate_pages({std::numeric_limits<int32_t>::max()}), std::bad_alloc);
}

}  // namespace
}  // namespace precast
