// Changes an engine's plan and sections: one thing, or one size wherever it stands.
#pragma once
#include <random>

#include "tests/fuzz/engine_image.h"

namespace precast {

class EngineMutator {
 public:
  EngineMutator(EngineImage& image, unsigned int seed) : image_(image), random_(seed) {}

  void mutate();

 private:
  using Texts = std::vector<std::string>;

  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  template <typename List>
  auto& any(List& list) {
    return list[below(list.size())];
  }

  int64_t integer(int64_t old);
  double real();
  void change(Attribute& value);
  void change_attributes(Attributes& attributes);
  void change_buffer();
  void change_op();
  void change_order();
  void change_operands(std::vector<int32_t>& operands);
  void change_section();
  void change_bytes(std::vector<uint8_t>& bytes);
  void change_size();

  EngineImage& image_;
  std::minstd_rand random_;
};

}  // namespace precast
