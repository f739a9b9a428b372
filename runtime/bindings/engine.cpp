// Engine files, and steps of the CPU backend run by hand.
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <limits>

#include "runtime/bindings/bindings.h"
#include "runtime/core/cpu_backend.h"
#include "runtime/core/cpu_quota.h"
#include "runtime/core/prefixes.h"
#include "runtime/core/vocab_bytes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace precast {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntTables = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;  // [B, pages] or [groups, B, pages]
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

WeightsMemory parse_weights_memory(const std::string& text) {
  if (text == "map") return WeightsMemory::map;
  if (text == "copy") return WeightsMemory::copy;
  throw EngineError("weights_memory is '" + text + "'; it must be map or copy");
}

class Engine {
 public:
  Engine(const std::filesystem::path& path, int num_threads, const std::string& weights_memory)
      : file_(EngineFile::open((std::filesystem::is_directory(path) ? path / "rank0.engine" : path).string(),
                               parse_weights_memory(weights_memory))),
        backend_(make_cpu_backend(file_, num_threads)) {
    try {
      if (const Section* section = file_->find("vocab_bytes")) {
        vocab_ = std::make_shared<VocabBytes>(file_->bytes(*section), file_);
      }
      if (const Section* section = file_->find("prefixes")) prefixes_ = read_section(*section);
    } catch (const EngineError& error) {
      throw EngineError(file_->path() + " will not load: " + error.what());
    }
  }

  const EngineFile& file() const { return *file_; }
  std::shared_ptr<Backend> backend() const { return backend_; }
  std::shared_ptr<VocabBytes> vocab() const { return vocab_; }
  std::shared_ptr<Prefixes> prefixes() const { return prefixes_; }

  std::vector<double> profile(const Ints& tokens, const IntRows& sequences, const IntTables& block_tables,
                              const Ints& logit_rows) {
    const StepBatch batch = make_batch(tokens, sequences, block_tables, logit_rows);
    const nb::gil_scoped_release released;
    std::vector<float> logits(batch.logit_rows.size() * static_cast<size_t>(backend_->limits().vocab_size));
    std::vector<double> op_seconds(file_->plan().ops.size());
    backend_->run_timed(batch, logits.data(), op_seconds);
    return op_seconds;
  }

  Logits forward(const Ints& tokens, const IntRows& sequences, const IntTables& block_tables, const Ints& logit_rows,
                 const std::optional<IntRows>& copies) {
    StepBatch batch = make_batch(tokens, sequences, block_tables, logit_rows);
    if (copies) add_copies(*copies, batch);
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
  std::shared_ptr<Prefixes> read_section(const Section& section) const {
    if (section.tag != kPrefixesTag) {
      throw EngineError("its prefixes have the unknown layout " + section.tag + "; build it again");
    }
    return std::make_shared<Prefixes>(read_prefixes(file_->bytes(section), backend_->limits()));
  }

  static void add_copies(const IntRows& copies, StepBatch& batch) {
    if (copies.shape(1) != 4) throw nb::value_error("copies is not [C, 4]");
    for (size_t i = 0; i < copies.shape(0); ++i) {
      const int32_t* c = copies.data() + 4 * i;
      batch.copies.push_back({c[0], c[1], c[2], c[3]});
    }
  }

  StepBatch make_batch(const Ints& tokens, const IntRows& sequences, const IntTables& block_tables,
                       const Ints& logit_rows) const {
    const size_t groups = backend_->limits().groups.size(), dims = block_tables.ndim();
    if (sequences.shape(1) != 2 || (dims != 2 && dims != 3) || block_tables.shape(dims - 2) != sequences.shape(0) ||
        (dims == 3 && block_tables.shape(0) != groups)) {
      throw nb::value_error("sequences is not [B, 2], or block_tables has not one row for each of them in every group");
    }
    if (tokens.size() > std::numeric_limits<int32_t>::max() ||
        block_tables.size() > std::numeric_limits<int32_t>::max()) {
      throw nb::value_error("a step has more tokens or pages than can be counted");
    }
    StepBatch batch;
    batch.tokens.assign(tokens.data(), tokens.data() + tokens.size());
    const size_t each = block_tables.shape(dims - 2) * block_tables.shape(dims - 1);
    for (size_t g = 0; g < groups; ++g) {
      const int32_t* tables = block_tables.data() + (dims == 3 ? g * each : 0);
      batch.block_tables.emplace_back(tables, tables + each);
    }
    batch.logit_rows.assign(logit_rows.data(), logit_rows.data() + logit_rows.size());
    int64_t first_row = 0;
    for (size_t i = 0; i < sequences.shape(0); ++i) {
      StepSequence sequence{};
      sequence.num_rows = sequences.data()[2 * i];
      sequence.first_position = sequences.data()[2 * i + 1];
      sequence.first_row = static_cast<int32_t>(first_row);
      sequence.block_table = static_cast<int32_t>(i * block_tables.shape(dims - 1));
      first_row += sequence.num_rows;
      if (sequence.num_rows < 1 || first_row > static_cast<int64_t>(tokens.size())) {
        throw nb::value_error("the rows of the sequences are not those of tokens");
      }
      batch.sequences.push_back(sequence);
    }
    return batch;
  }

  std::shared_ptr<const EngineFile> file_;
  std::shared_ptr<CpuBackend> backend_;
  std::shared_ptr<VocabBytes> vocab_;
  std::shared_ptr<Prefixes> prefixes_;  // the backend holds the file that they point into
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
  nb::class_<Prefixes>(m, "Prefixes", "Prefixes whose K/V was computed at build time; see runtime/core/prefixes.h.")
      .def_ro("prompts", &Prefixes::prompts)
      .def_ro("num_pages", &Prefixes::num_pages);
  nb::class_<Engine>(m, "Engine", "A mapped engine and its backend.")
      .def(nb::init<const std::filesystem::path&, int, const std::string&>(), "path"_a, "num_threads"_a = 0,
           "weights_memory"_a = "map", nb::call_guard<nb::gil_scoped_release>(),
           "Maps `path`, an engine folder or its rank0.engine, or reads it into huge pages (\"copy\"); num_threads 0: "
           "all "
           "that this process may use. Raises EngineError.")
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
      .def_prop_ro("prefixes", &Engine::prefixes, nb::sig("def prefixes(self) -> Prefixes | None"))
      .def(
          "page",
          [](const Engine& e, int32_t group, PageId page) {
            const std::span<const uint8_t> bytes = e.backend()->page(group, page);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "group"_a, "page"_a, "What a KV page holds. Raises ValueError for a page outside the pools.")
      .def_prop_ro("vocab", &Engine::vocab, nb::sig("def vocab(self) -> VocabBytes | None"))
      .def(
          "allocate_pages",
          [](const Engine& e, int32_t num_pages) {
            e.backend()->allocate_pages(std::vector<int32_t>(e.backend()->limits().groups.size(), num_pages));
          },
          "num_pages"_a,
          "Allocates a KV pool of num_pages for every layer group, emptying it. Raises MemoryError. Not for a backend "
          "that runs already.")
      .def(
          "forward", &Engine::forward, "tokens"_a, "sequences"_a, "block_tables"_a, "logit_rows"_a,
          "copies"_a.none() = nb::none(),
          "Runs one step: tokens i32 [T]; sequences i32 [B, 2] of (rows, first position), in the order of their rows; "
          "block_tables i32 [groups, B, pages] (or [B, pages]: the same in every layer group), of which a sequence "
          "uses as many as its positions need, -1 where a page has left its group's window; logit_rows i32 [S], "
          "rising; "
          "copies i32 [C, 4] of (group, from page, to page, first tokens), done in order before anything else → logits "
          "f32 [S, vocab_size]. One call at a time. Raises ValueError for a step that breaks a limit.")
      .def("profile", &Engine::profile, "tokens"_a, "sequences"_a, "block_tables"_a, "logit_rows"_a,
           "As forward, without the logits → the seconds that each op of the plan took.");
}

}  // namespace precast
