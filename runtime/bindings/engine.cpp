// Engine files, and steps of the CPU backend run by hand.
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <filesystem>
#include <limits>

#include "runtime/bindings/bindings.h"
#include "runtime/core/cpu_backend.h"
#include "runtime/core/cpu_quota.h"
#include "runtime/core/vocab_bytes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace precast {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

class Engine {
 public:
  Engine(const std::filesystem::path& path, int num_threads)
      : file_(EngineFile::open((std::filesystem::is_directory(path) ? path / "rank0.engine" : path).string())),
        backend_(make_cpu_backend(file_, num_threads)) {
    const Section* section = file_->find("vocab_bytes");
    if (section == nullptr) return;
    try {
      vocab_ = std::make_shared<VocabBytes>(file_->bytes(*section), file_);
    } catch (const EngineError& error) {
      throw EngineError(file_->path() + " will not load: " + error.what());
    }
  }

  const EngineFile& file() const { return *file_; }
  std::shared_ptr<Backend> backend() const { return backend_; }
  std::shared_ptr<VocabBytes> vocab() const { return vocab_; }

  Logits forward(const Ints& tokens, const IntRows& sequences, const IntRows& block_tables, const Ints& logit_rows) {
    const StepBatch batch = make_batch(tokens, sequences, block_tables, logit_rows);
    const size_t rows = batch.logit_rows.size(), columns = static_cast<size_t>(backend_->limits().vocab_size);
    auto* logits = new float[rows * columns];
    nb::capsule owner(logits, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    {
      nb::gil_scoped_release released;
      backend_->run(batch, logits);
    }
    return Logits(logits, {rows, columns}, owner);
  }

 private:
  static StepBatch make_batch(const Ints& tokens, const IntRows& sequences, const IntRows& block_tables,
                              const Ints& logit_rows) {
    if (sequences.shape(1) != 2 || block_tables.shape(0) != sequences.shape(0)) {
      throw nb::value_error("sequences is not [B, 2], or block_tables has not one row for each of them");
    }
    if (tokens.size() > std::numeric_limits<int32_t>::max() ||
        block_tables.size() > std::numeric_limits<int32_t>::max()) {
      throw nb::value_error("a step has more tokens or pages than can be counted");
    }
    StepBatch batch;
    batch.tokens.assign(tokens.data(), tokens.data() + tokens.size());
    batch.block_tables.assign(block_tables.data(), block_tables.data() + block_tables.size());
    batch.logit_rows.assign(logit_rows.data(), logit_rows.data() + logit_rows.size());
    int64_t first_row = 0;
    for (size_t i = 0; i < sequences.shape(0); ++i) {
      StepSequence sequence{};
      sequence.num_rows = sequences.data()[2 * i];
      sequence.first_position = sequences.data()[2 * i + 1];
      sequence.first_row = static_cast<int32_t>(first_row);
      sequence.block_table = static_cast<int32_t>(i * block_tables.shape(1));
      first_row += sequence.num_rows;
      if (sequence.num_rows < 1 || first_row > static_cast<int64_t>(tokens.size())) {
        throw nb::value_error("the rows of the sequences are not those of tokens");
      }
      batch.sequences.push_back(sequence);
    }
    return batch;
  }

  std::shared_ptr<const EngineFile> file_;
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<VocabBytes> vocab_;
};

}  // namespace

void bind_engine(nb::module_& m) {
  m.def("available_cpus", &available_cpus, "root"_a = "",
        "CPUs that this process may use, by affinity mask and cgroup quota. `root` is put before /proc and /sys.");
  nb::class_<Section>(m, "Section", "An entry of an engine file's section table.")
      .def_ro("name", &Section::name)
      .def_ro("tag", &Section::tag)
      .def_ro("offset", &Section::offset)
      .def_ro("length", &Section::length);
  nb::class_<Engine>(m, "Engine", "A mapped engine and its backend.")
      .def(nb::init<const std::filesystem::path&, int>(), "path"_a, "num_threads"_a = 0,
           nb::call_guard<nb::gil_scoped_release>(),
           "Maps `path`, an engine folder or its rank0.engine; num_threads 0: all that this process may use. Raises "
           "EngineError.")
      .def_prop_ro("path", [](const Engine& e) { return e.file().path(); })
      .def_prop_ro("plan_attributes", [](const Engine& e) { return e.file().plan().attributes.values; })
      .def_prop_ro(
          "sections",
          [](const Engine& e) {
            nb::list sections;
            for (const Section& section : e.file().sections()) sections.append(nb::cast(section));
            return sections;
          },
          nb::sig("def sections(self) -> list[Section]"))
      .def_prop_ro("limits", [](const Engine& e) { return e.backend()->limits(); })
      .def_prop_ro("backend", &Engine::backend)
      .def_prop_ro("vocab", &Engine::vocab, nb::sig("def vocab(self) -> VocabBytes | None"))
      .def(
          "allocate_pages", [](const Engine& e, int32_t num_pages) { e.backend()->allocate_pages(num_pages); },
          "num_pages"_a, "Allocates the KV pool, emptying it. Raises MemoryError. Not for a backend that runs already.")
      .def("forward", &Engine::forward, "tokens"_a, "sequences"_a, "block_tables"_a, "logit_rows"_a,
           "Runs one step: tokens i32 [T]; sequences i32 [B, 2] of (rows, first position), in the order of their rows; "
           "block_tables i32 [B, pages], of which a sequence uses as many as its positions need; logit_rows i32 [S], "
           "rising → logits f32 [S, vocab_size]. One call at a time. Raises ValueError for a step that breaks a limit.")
      .def(
          "copy_page", [](const Engine& e, PageId from, PageId to, int32_t n) { e.backend()->copy_page(from, to, n); },
          "from_page"_a, "to_page"_a, "num_tokens"_a,
          "Copies the first num_tokens tokens of a page. Raises ValueError.");
}

}  // namespace precast
