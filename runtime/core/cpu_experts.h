// One linear of many experts: the rows of a step are sorted by expert, and each expert's weights are read once.
#pragma once
#include <vector>

#include "runtime/core/cpu_op_maker.h"

namespace precast {

// Rows sorted by expert: expert e has the entries begin[e] … begin[e + 1] − 1, and entry i is row rows[i] of x (null:
// row i).
struct ExpertRows {
  const float* x;  // [rows][ld], zeros behind the columns
  int64_t ld;
  const int32_t* rows;
  const int32_t* begin;  // [experts + 1]

  const float* row(int64_t entry) const { return x + (rows == nullptr ? entry : rows[entry]) * ld; }
};

class ExpertLinear {
 public:
  struct Shape {
    int64_t experts;
    int64_t n, k;   // of one expert, before padding; gated: the gate and the up projection have n each
    int32_t group;  // columns of K that share an activation scale of int8 weights; 0: all
    bool gated;
    Activation activation;
  };

  // Takes the sections that it needs from number `weight` on, which it advances: the experts' packed weights one after
  // the other, and for int8 their scales. Throws EngineError.
  ExpertLinear(const CpuOpMaker& maker, const Shape& shape, size_t& weight);

  int64_t out_ld() const { return round_up(shape_.n, kPanel); }

  // Bytes that run wants as `work` for at most `entries` entries, whose x has leading dimension ld, and of each
  // thread's scratch.
  int64_t work_bytes(int64_t entries, int64_t ld) const;
  int64_t scratch_bytes(int64_t ld) const { return most_rows_ * ld * 4; }

  // y [entries][out_ld()]: each entry through its expert. An entry's result depends on its row and expert alone.
  void run(CpuContext& context, const ExpertRows& in, std::byte* work, float* y);

 private:
  struct Tile {
    int32_t expert;
    int64_t entry;
    int rows;
  };
  struct Item {
    int32_t expert;
    int panel_begin, panel_end;
  };

  bool quantized() const { return kind_ == WeightKind::i8; }
  int64_t most_tiles(int64_t entries) const;
  void plan(const int32_t* begin);
  void load_tiles(CpuContext& context, const ExpertRows& in, std::byte* work);
  // `count` tiles from number `first` on, all of the item's expert.
  void multiply(const CpuContext& context, const Item& item, size_t first, size_t count, const ExpertRows& in,
                std::byte* work, float* y) const;

  Shape shape_;
  WeightKind kind_;
  LinearWeights first_;     // of expert 0
  int64_t expert_bytes_;    // from expert to expert
  int64_t most_rows_;       // of a tile
  int64_t panels_at_once_;  // of an item
  CpuValue tiles_{};        // how quantized tiles lie in `work`

  // Of the step that runs.
  std::vector<Tile> plan_tiles_;
  std::vector<size_t> first_tile_;  // [experts + 1]
  std::vector<Item> items_;
};

}  // namespace precast
