#include "collectives/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "device/memory.h"
#include "device/runtime.h"
#include "device/tensors.h"
#include "device/virtual.h"
#include "timing/timing.h"
#include "values/description.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;
using c10d::OpType;
using OfRanks = std::vector<std::vector<Given>>;

// The interval at which NCCL's watchdog looks for finished collectives
// (kWatchdogThreadSleepMillis).
constexpr double kWatchdogNs = 100e6;
// The host needs this time for a collective, without the time for its events. A host with H200s
// took 50 to 90 us for both (benchmarks/collectives.py).
constexpr double kCollectiveHostNs = 10000;
// A stream that no program uses. Nothing is ever queued on it, so the time at which it is done is
// the host's current time.
constexpr std::uint64_t kHostClock = std::numeric_limits<std::uint64_t>::max() - 7;
constexpr std::string_view kLetGoLater =
    "the host's pace decides when a collective releases its tensors";

double bytes_of(const std::vector<Tensor>& tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors) {
    bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
  }
  return bytes;
}

const char* name_of(c10d::ReduceOp::RedOpType how) {
  constexpr const char* kNames[] = {"sum", "avg", "product", "min",       "max",
                                    "and", "or",  "xor",     "premul_sum"};
  const auto number = static_cast<std::size_t>(how);
  return number < std::size(kNames) ? kNames[number] : "some operation";
}

// Returns the element count and the type of a tensor as text, such as "1024 of float". The text
// must be equal on all ranks.
std::string count_of(const Tensor& tensor) {
  return std::to_string(tensor.numel()) + " of " + c10::toString(tensor.scalar_type());
}

std::string counts_of(const std::vector<Tensor>& tensors) {
  std::string text;
  for (const Tensor& tensor : tensors) {
    if (!text.empty()) text += ", ";
    text += count_of(tensor);
  }
  return text;
}

// Returns element `place` of each rank's list of contributions. Throws if a list has no such
// element.
std::vector<Given> of_place(const OfRanks& ranks, std::size_t place) {
  std::vector<Given> given;
  for (const auto& rank : ranks) {
    TORCH_CHECK_WITH(DistBackendError, place < rank.size(), "a rank gave fewer tensors");
    given.push_back(rank[place]);
  }
  return given;
}

// A meeting is one exchange between ranks. Returns a number that selects the random values for one
// part of the meeting. The number is the same on all ranks that receive the part.
std::uint64_t series_of(std::uint64_t meeting, std::size_t part) {
  return (meeting + part + 1) * 0x9E3779B97F4A7C15ULL;
}

Tensor slice(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.view({-1}).narrow(0, first, count);
}

// Makes a host tensor of numbers that are sent along with a tensor, such as its sizes.
Tensor host_numbers(const std::vector<std::int64_t>& numbers) {
  const WithContentsScope real;
  Tensor tensor = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

std::vector<std::int64_t> numbers_of(const Given& given) {
  const auto* const first = given.values.const_data_ptr<std::int64_t>();
  return {first, first + given.count};
}

// Returns how many elements each rank's part of a tensor has.
std::vector<std::int64_t> parts_of(const Tensor& tensor, const std::vector<std::int64_t>& rows,
                                   int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  if (rows.empty()) return std::vector<std::int64_t>(count, tensor.numel() / ranks);
  const std::int64_t of_row =
      tensor.dim() == 0 || tensor.size(0) == 0 ? 1 : tensor.numel() / tensor.size(0);
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : rows) sizes.push_back(size * of_row);
  return sizes;
}

std::int64_t sum_before(const std::vector<std::int64_t>& sizes, std::size_t place) {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(place),
                         std::int64_t{0});
}

double host_time(c10::DeviceIndex device) {
  const Runtime& state = runtime();
  return state.gpus->done_at(state.device(device).gpu, kHostClock);
}

bool is_on_device(const std::vector<Tensor>& tensors) {
  return !tensors.empty() && tensors[0].is_cuda();
}

// Makes one tensor with room for a list of tensors of equal size, as PyTorch's newLikeFlat does.
Tensor flat_like(const std::vector<Tensor>& tensors) {
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(tensors.size())};
  sizes.insert(sizes.end(), tensors[0].sizes().begin(), tensors[0].sizes().end());
  return at::empty(sizes, tensors[0].options());
}

// Checks that `whole` has one part of the size and type of `part` for each rank, as
// ProcessGroupNCCL::_allgather_base and _reduce_scatter_base do.
void require_parts(const Tensor& whole, const Tensor& part, int ranks, const char* wrong_type,
                   const char* wrong_size) {
  TORCH_CHECK_TYPE(whole.scalar_type() == part.scalar_type(), wrong_type);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * ranks, wrong_size);
}

// Checks that a tensor has room for what NCCL reads or writes in it. NCCL itself does not check.
void require_bytes(const char* what, const char* name, const Tensor& tensor, std::size_t bytes) {
  TORCH_CHECK_VALUE(tensor.nbytes() >= bytes, what, ": the ", name, " has ", tensor.nbytes(),
                    " bytes, and NCCL would access ", bytes, " bytes of it");
}

std::size_t bytes_of_parts(std::int64_t count, const Tensor& type, int ranks) {
  return static_cast<std::size_t>(count * ranks) * type.itemsize();
}

// Describes values of which nothing is known but their type.
Given any_values(const Tensor& tensor) {
  Given given;
  given.type = tensor.scalar_type();
  given.count = tensor.numel();
  given.known = {Source::described, Description::of_type(given.type)};
  return given;
}

// Checks a list with a tensor for each rank. NCCL would read or write past the end of a shorter
// list's memory.
void require_one_a_rank(const char* what, const std::vector<Tensor>& parts, int ranks,
                        bool may_be_longer = false) {
  const auto needed = static_cast<std::size_t>(ranks);
  TORCH_CHECK_VALUE(parts.size() == needed || (may_be_longer && parts.size() > needed), what,
                    ": a list of ", parts.size(), " tensors was given; the group has ", ranks,
                    " ranks");
}

std::int64_t count_different(std::vector<std::int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return std::unique(numbers.begin(), numbers.end()) - numbers.begin();
}

bool have_equal_sizes(const std::vector<Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const Tensor& one) { return one.sizes() == tensors[0].sizes(); });
}

}  // namespace

SimulatedGroup::SimulatedGroup(std::string name, std::uint64_t number, int rank, int size,
                               std::vector<std::int64_t> machines, bool has_high_priority,
                               bool is_successor)
    : Backend(rank, size),
      name_(std::move(name)),
      is_nccl_(name_ == "nccl"),
      is_successor_(is_nccl_ && is_successor),
      number_(number),
      machines_(std::move(machines)),
      shape_{size, count_different(machines_)},
      has_high_priority_(has_high_priority),
      options_(c10::make_intrusive<Options>(name_)),
      watched_since_ns_(host_time(runtime().current_device())) {
  init();
}

SimulatedGroup::~SimulatedGroup() = default;

void SimulatedGroup::shutdown() {
  if (is_nccl_) drop_communicators(number_);
}

Collective SimulatedGroup::make(const char* what, std::string agreed, Tensors inputs,
                                Tensors outputs) const {
  Collective made;
  made.meeting.group = number_;
  made.meeting.what = what;
  made.meeting.agreed = std::move(agreed);
  made.gives = inputs;
  made.bytes = std::max(bytes_of(inputs), bytes_of(outputs));
  made.inputs = std::move(inputs);
  made.outputs = std::move(outputs);
  return made;
}

c10::Stream SimulatedGroup::stream_of(const std::string& key, c10::Device device) {
  const auto place = streams_.find(key);
  if (place != streams_.end()) return place->second;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const c10::Stream stream = guard.getStreamFromGlobalPool(device, has_high_priority_);
  streams_.emplace(key, stream);
  return stream;
}

std::string SimulatedGroup::peers(bool sends, bool receives, bool with_itself) const {
  std::string all;
  for (int peer = 0; peer < getSize(); ++peer) {
    if (with_itself || peer != getRank()) all += (all.empty() ? "" : ",") + std::to_string(peer);
  }
  return "to " + (sends ? all : "") + " from " + (receives ? all : "");
}

SimulatedGroup::Transfer SimulatedGroup::transfer_of(const Collective& collective,
                                                     c10::DeviceIndex device) const {
  const GroupShape shape = collective.among.value_or(shape_);
  return {collective_ns(collective.traffic, collective.bytes, shape,
                        runtime().device(device).properties),
          shape.machines > 1};
}

// Adds a call to those that NCCL runs together. It sends and receives at the same time.
void SimulatedGroup::coalesce(const Transfer& transfer, OpType type) {
  double& sum = type == OpType::RECV ? coalesced_received_ns_ : coalesced_sent_ns_;
  sum += transfer.ns;
  coalesced_crosses_network_ |= transfer.crosses_network;
}

void SimulatedGroup::launch(const Transfer& transfer, const c10::Stream& stream,
                            const std::shared_ptr<Shelf>& shelf) {
  Runtime& state = runtime();
  const c10::DeviceIndex index = stream.device_index();
  const c10::StreamId before = state.current_stream(index);
  state.set_stream(index, stream.id());
  using plimsoll::simulated::Work;
  state.launch(index, transfer.crosses_network ? Work::network : Work::collective, transfer.ns);
  state.set_stream(index, before);
  if (shelf == nullptr) return;
  const double ends =
      state.gpus->done_at(state.device(index).gpu, static_cast<std::uint64_t>(stream.id()));
  const std::lock_guard lock(mutex_);
  running_.push_back({shelf, ends});
}

// Releases tensors as NCCL's watchdog does. The watchdog's thread looks ten times a second for
// collectives that are done on the GPU. The next collective then releases their tensors. The time
// of the watchdog's last look is unknown. The upper bound of memory assumes the earliest possible
// time. The lower bound assumes that all earlier collectives were done at the last look, because
// the host can be slow, for example while it loads kernels.
void SimulatedGroup::let_go(c10::DeviceIndex device) {
  std::vector<std::shared_ptr<Shelf>> done;
  std::uint64_t open_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const double now = host_time(device);
    const double looks = std::floor((now - watched_since_ns_) / kWatchdogNs);
    const double last = watched_since_ns_ + (looks * kWatchdogNs);
    double seen = last;
    if (unknown() == Unknown::most) seen = now - kWatchdogNs;
    // ProcessGroupNCCL's successor (see group.h) looks for finished collectives before each new
    // one.
    if (is_successor_) seen = now;
    if (unknown() == Unknown::least) seen = std::numeric_limits<double>::infinity();
    while (!running_.empty() && running_.front().ends_ns <= seen) {
      done.push_back(running_.front().shelf);
      running_.pop_front();
    }
    for (const Running& running : running_) open_bytes += running.shelf->own_bytes();
    for (const auto& shelf : done) open_bytes += shelf->own_bytes();
  }
  for (const auto& shelf : done) shelf->clear();
  if (open_bytes != 0) {
    runtime().assume(runtime().name("NCCL's watchdog"), kLetGoLater, open_bytes);
  }
}

SimulatedGroup::WorkPtr SimulatedGroup::run_on_host(Collective collective, OpType type,
                                                    bool is_async) {
  Tensors outputs = collective.outputs;
  auto work = c10::make_intrusive<SimulatedWork>(
      getRank(), type,
      std::vector<std::shared_ptr<Pending>>{std::make_shared<Pending>(std::move(collective))},
      std::move(outputs), c10::Device(c10::DeviceType::CPU));
  if (!is_async) work->finish_all();
  return work;
}

SimulatedGroup::WorkPtr SimulatedGroup::run(Collective collective, OpType type, bool is_async,
                                            const std::string& pattern) {
  ++sequence_;
  const Tensors& some = collective.inputs.empty() ? collective.outputs : collective.inputs;
  if (!is_on_device(some)) return run_on_host(std::move(collective), type, is_async);
  Runtime& state = runtime();
  const c10::Device device = some[0].device();
  const DeviceScope on(device.index());
  const std::string key = std::to_string(device.index());
  if (is_nccl_) need_communicator(number_, device.index(), key, pattern);
  state.pass_host_time(device.index(), kCollectiveHostNs);
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const c10::Stream current = guard.getStream(device);
  const c10::Stream stream = is_async && is_nccl_ ? stream_of(key, device) : current;
  if (stream != current && !is_coalescing_) {
    c10::Event ready(c10::DeviceType::CUDA);
    ready.record(current);
    ready.block(stream);
  }
  const Transfer transfer = transfer_of(collective, device.index());
  const Tensors inputs = collective.inputs;
  Tensors outputs = collective.outputs;
  Tensors held = inputs;
  held.insert(held.end(), outputs.begin(), outputs.end());
  auto pending = std::make_shared<Pending>(std::move(collective));
  if (is_coalescing_) {
    coalesced_.push_back(pending);
    is_coalesced_async_ = is_async;
    if (is_async) coalesced_tensors_.insert(coalesced_tensors_.end(), held.begin(), held.end());
    coalesced_outputs_.insert(coalesced_outputs_.end(), outputs.begin(), outputs.end());
    if (!coalesced_stream_) {
      if (stream != current) {
        c10::Event ready(c10::DeviceType::CUDA);
        ready.record(current);
        ready.block(stream);
      }
      coalesced_stream_ = stream;
    }
    coalesce(transfer, type);
    return c10::make_intrusive<SimulatedWork>(
        getRank(), type, std::vector<std::shared_ptr<Pending>>{pending}, outputs, device);
  }
  auto work = c10::make_intrusive<SimulatedWork>(
      getRank(), type, std::vector<std::shared_ptr<Pending>>{pending}, outputs, device);
  if (is_successor_) work->let_go_with_future();
  if (stream != current) work->shelf()->stash(is_successor_ ? inputs : held);
  let_go(device.index());
  launch(transfer, stream, stream == current ? nullptr : work->shelf());
  work->record_end(stream);
  if (!is_async) work->finish_all();
  return work;
}

void SimulatedGroup::startCoalescing() {
  is_coalescing_ = true;
  coalesced_.clear();
  coalesced_tensors_.clear();
  coalesced_outputs_.clear();
  coalesced_sent_ns_ = coalesced_received_ns_ = 0;
  coalesced_crosses_network_ = false;
  coalesced_stream_.reset();
}

SimulatedGroup::WorkPtr SimulatedGroup::endCoalescing() {
  is_coalescing_ = false;
  if (!coalesced_stream_) return nullptr;
  const c10::Stream stream = *coalesced_stream_;
  const c10::Device device = stream.device();
  auto work = c10::make_intrusive<SimulatedWork>(getRank(), OpType::COALESCED,
                                                 std::exchange(coalesced_, {}),
                                                 std::exchange(coalesced_outputs_, {}), device);
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const bool is_apart = stream != guard.getStream(device);
  if (is_apart) work->shelf()->stash(std::exchange(coalesced_tensors_, {}));
  let_go(device.index());
  launch({std::max(coalesced_sent_ns_, coalesced_received_ns_), coalesced_crosses_network_}, stream,
         is_apart ? work->shelf() : nullptr);
  work->record_end(stream);
  coalesced_stream_.reset();
  if (!is_coalesced_async_) work->finish_all();
  return work;
}

SimulatedGroup::WorkPtr SimulatedGroup::broadcast(Tensors& tensors,
                                                  const c10d::BroadcastOptions& options) {
  const auto root = static_cast<std::size_t>(options.rootRank);
  Collective made = make("broadcast", count_of(tensors[0]) + " from rank " + std::to_string(root),
                         tensors, tensors);
  made.traffic = Traffic::passed_on;
  const bool is_root = options.rootRank == getRank();
  if (!is_root) made.gives.clear();
  made.take = [tensor = tensors[0], root](const OfRanks& ranks, std::uint64_t series) {
    // If the root does not run (`predict --ranks`), it has sent nothing, and the tensor keeps this
    // rank's elements.
    if (!ranks[root].empty()) take(tensor, ranks[root][0], series);
  };
  return run(std::move(made), OpType::BROADCAST, options.asyncOp);
}

SimulatedGroup::WorkPtr SimulatedGroup::allreduce(Tensors& tensors,
                                                  const c10d::AllreduceOptions& options) {
  Collective made =
      make("all_reduce", counts_of(tensors) + ", " + name_of(options.reduceOp), tensors, tensors);
  made.traffic = Traffic::reduced;
  const c10d::ReduceOp::RedOpType how = options.reduceOp;
  made.take = [tensors, how](const OfRanks& ranks, std::uint64_t series) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      take(tensors[i], reduced(of_place(ranks, i), how), series_of(series, i));
    }
  };
  return run(std::move(made), OpType::ALLREDUCE, options.asyncOp);
}

SimulatedGroup::WorkPtr SimulatedGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

SimulatedGroup::WorkPtr SimulatedGroup::reduce(Tensors& tensors,
                                               const c10d::ReduceOptions& options) {
  Collective made = make("reduce",
                         count_of(tensors[0]) + ", " + name_of(options.reduceOp) + " to rank " +
                             std::to_string(options.rootRank),
                         tensors, tensors);
  made.traffic = Traffic::passed_on;
  if (options.rootRank == getRank()) {
    made.take = [tensor = tensors[0],
                 how = static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp)](
                    const OfRanks& ranks, std::uint64_t series) {
      take(tensor, reduced(of_place(ranks, 0), how), series);
    };
  }
  return run(std::move(made), OpType::REDUCE, options.asyncOp);
}

SimulatedGroup::WorkPtr SimulatedGroup::_allgather_base(Tensor& output, Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  require_parts(output, input, getSize(), "output tensor must have the same type as input tensor",
                "output tensor size must be equal to world_size times input tensor size");
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

SimulatedGroup::WorkPtr SimulatedGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& input = inputs.at(i);
    require_bytes("all_gather_into_tensor", "output", outputs[i],
                  bytes_of_parts(input.numel(), input, getSize()));
  }
  Collective made = make("all_gather_into_tensor", counts_of(inputs), inputs, outputs);
  made.traffic = Traffic::collected;
  made.take = [outputs](const OfRanks& ranks, std::uint64_t series) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::vector<Given> given = of_place(ranks, i);
      // NCCL copies the bytes without conversion. In an output of another type, the same bytes mean
      // other values.
      if (given[0].type != outputs[i].scalar_type()) {
        take(outputs[i], any_values(outputs[i]), series_of(series, i));
        continue;
      }
      for (std::size_t rank = 0; rank < given.size(); ++rank) {
        const std::int64_t count = given[rank].count;
        take(slice(outputs[i], static_cast<std::int64_t>(rank) * count, count), given[rank],
             series_of(series, (i * given.size()) + rank));
      }
    }
  };
  return run(std::move(made), OpType::_ALLGATHER_BASE, options.asyncOp);
}

SimulatedGroup::WorkPtr SimulatedGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  const Tensors& parts = outputs[0];
  const bool is_even = have_equal_sizes(parts);
  const bool is_flat = is_nccl_ && !is_successor_ && is_even && inputs[0].is_cuda();
  require_one_a_rank("all_gather", parts, getSize(), /*may_be_longer=*/is_flat);
  Collective made =
      make("all_gather", is_even ? count_of(inputs[0]) : "uneven parts", inputs, parts);
  made.traffic = Traffic::collected;
  made.take = [parts](const OfRanks& ranks, std::uint64_t series) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      take(parts[rank], ranks[rank].at(0), series_of(series, rank));
    }
    for (std::size_t extra = ranks.size(); extra < parts.size(); ++extra) {
      take(parts[extra], any_values(parts[extra]), series_of(series, extra));
    }
  };
  Tensor flat;  // the kernel writes to it; PyTorch then copies from it
  if (is_flat) {
    const OperationScope scope(runtime().name("all_gather"), Role::temporary);
    flat = flat_like(parts);
    made.outputs.push_back(flat);
  }
  return run(std::move(made), OpType::ALLGATHER, options.asyncOp);
}

SimulatedGroup::WorkPtr SimulatedGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& options) {
  const bool is_root = options.rootRank == getRank();
  const Tensors parts = is_root ? outputs.at(0) : Tensors{};
  if (is_root) require_one_a_rank("gather", parts, getSize());
  Collective made =
      make("gather", count_of(inputs[0]) + " to rank " + std::to_string(options.rootRank), inputs,
           parts);
  made.take = [parts](const OfRanks& ranks, std::uint64_t series) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      take(parts[rank], ranks[rank].at(0), series_of(series, rank));
    }
  };
  const std::string pattern =
      is_root ? peers(false, true) : "to " + std::to_string(options.rootRank) + " from ";
  return run(std::move(made), OpType::GATHER, options.asyncOp, pattern);
}

SimulatedGroup::WorkPtr SimulatedGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ScatterOptions& options) {
  const bool is_root = options.rootRank == getRank();
  const auto root = static_cast<std::size_t>(options.rootRank);
  const auto mine = static_cast<std::size_t>(getRank());
  if (is_root) require_one_a_rank("scatter", inputs.at(0), getSize());
  Collective made = make("scatter", count_of(outputs[0]) + " from rank " + std::to_string(root),
                         is_root ? inputs.at(0) : Tensors{}, outputs);
  made.take = [output = outputs[0], root, mine](const OfRanks& ranks, std::uint64_t series) {
    if (!ranks[root].empty()) take(output, ranks[root].at(mine), series_of(series, mine));
  };
  const std::string pattern =
      is_root ? peers(true, false) : "to  from " + std::to_string(options.rootRank);
  return run(std::move(made), OpType::SCATTER, options.asyncOp, pattern);
}

SimulatedGroup::WorkPtr SimulatedGroup::_reduce_scatter_base(
    Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) {
  require_parts(input, output, getSize(),
                "input tensor must be the same type as the output tensor.",
                "input tensor must be the same size as output size times world size");
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

SimulatedGroup::WorkPtr SimulatedGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  std::string counts;  // as NCCL gets them
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& input = inputs.at(i);
    const std::int64_t count = outputs[i].numel();
    require_bytes("reduce_scatter_tensor", "output", outputs[i], bytes_of_parts(count, input, 1));
    require_bytes("reduce_scatter_tensor", "input", input, bytes_of_parts(count, input, getSize()));
    counts +=
        std::to_string(count * getSize()) + " of " + c10::toString(input.scalar_type()) + ", ";
  }
  Collective made =
      make("reduce_scatter_tensor", counts + name_of(options.reduceOp), inputs, outputs);
  made.traffic = Traffic::collected;
  const c10d::ReduceOp::RedOpType how = options.reduceOp;
  const std::int64_t mine = getRank();
  made.take = [outputs, how, mine](const OfRanks& ranks, std::uint64_t series) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::int64_t count = outputs[i].numel();
      std::vector<Given> parts;
      for (const Given& given : of_place(ranks, i)) {
        parts.push_back(part_of(given, mine * count, count));
      }
      // NCCL writes values of the input's type. In an output of another type, the same bytes mean
      // other values.
      const bool is_same_type = parts[0].type == outputs[i].scalar_type();
      take(outputs[i], is_same_type ? reduced(parts, how) : any_values(outputs[i]),
           series_of(series, static_cast<std::size_t>(mine)));
    }
  };
  return run(std::move(made), OpType::_REDUCE_SCATTER_BASE, options.asyncOp);
}

SimulatedGroup::WorkPtr SimulatedGroup::reduce_scatter(Tensors& outputs,
                                                       std::vector<Tensors>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  const Tensors& parts = inputs[0];
  const bool is_flat =
      is_nccl_ && !is_successor_ && have_equal_sizes(parts) && outputs[0].is_cuda();
  require_one_a_rank("reduce_scatter", parts, getSize(), /*may_be_longer=*/is_flat);
  Collective made =
      make("reduce_scatter", counts_of(parts) + ", " + name_of(options.reduceOp), parts, outputs);
  made.traffic = Traffic::collected;
  const c10d::ReduceOp::RedOpType how = options.reduceOp;
  const auto mine = static_cast<std::size_t>(getRank());
  made.take = [output = outputs[0], how, mine](const OfRanks& ranks, std::uint64_t series) {
    take(output, reduced(of_place(ranks, mine), how), series_of(series, mine));
  };
  Tensor flat;  // PyTorch copies into it; the kernel then reads it
  if (is_flat) {
    const OperationScope scope(runtime().name("reduce_scatter"), Role::temporary);
    flat = flat_like(parts);
    made.inputs.push_back(flat);
  }
  return run(std::move(made), OpType::REDUCE_SCATTER, options.asyncOp);
}

SimulatedGroup::WorkPtr SimulatedGroup::alltoall_base(Tensor& output, Tensor& input,
                                                      std::vector<std::int64_t>& to_take,
                                                      std::vector<std::int64_t>& to_give,
                                                      const c10d::AllToAllOptions& options) {
  const bool is_even = to_take.empty() && to_give.empty();
  if (is_even) {
    require_bytes("all_to_all_single", "output", output, input.nbytes());
  } else {
    c10d::checkSplitSizes(to_give, input, getSize());
    c10d::checkSplitSizes(to_take, output, getSize());
  }
  const bool is_whole = !is_even || input.numel() % getSize() == 0;
  TORCH_CHECK_VALUE(is_nccl_ || is_whole, "all_to_all_single: the ", input.numel(),
                    " elements do not divide equally among ", getSize(), " ranks");
  // If the program gives no sizes, NCCL cuts the input's bytes into equal parts, one for each rank.
  // A part may then begin in the middle of an element.
  const bool is_within = !is_whole && input.numel() > getSize();
  const std::vector<std::int64_t> taken = parts_of(is_even ? input : output, to_take, getSize());
  Collective made =
      make("all_to_all_single", c10::toString(input.scalar_type()), {input}, {output});
  made.gives.push_back(host_numbers(parts_of(input, to_give, getSize())));
  const auto mine = static_cast<std::size_t>(getRank());
  made.take = [output, taken, mine, is_within](const OfRanks& ranks, std::uint64_t series) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::vector<std::int64_t> theirs = numbers_of(ranks[rank].at(1));
      TORCH_CHECK_WITH(DistBackendError, theirs[mine] == taken[rank], "all_to_all_single: rank ",
                       rank, " sends ", theirs[mine], " elements to rank ", mine,
                       ", which expects ", taken[rank],
                       " of it; with NCCL both would wait for ever, or memory be overwritten");
      if (is_within) continue;
      take(slice(output, sum_before(taken, rank), taken[rank]),
           part_of(ranks[rank][0], sum_before(theirs, mine), theirs[mine]),
           series_of(series, (rank * ranks.size()) + mine));
    }
    if (is_within) take(output, any_values(output), series_of(series, mine));
  };
  // In a group of one rank, a call with equal parts is a plain copy. If the program gives the sizes
  // of the parts, NCCL runs a kernel, by which the rank sends its part to itself (measured).
  const std::string pattern = peers(true, true, !is_even);
  return run(std::move(made), OpType::ALLTOALL_BASE, options.asyncOp, pattern);
}

SimulatedGroup::WorkPtr SimulatedGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  require_one_a_rank("all_to_all", outputs, getSize());
  require_one_a_rank("all_to_all", inputs, getSize());
  Collective made = make("all_to_all", c10::toString(inputs[0].scalar_type()), inputs, outputs);
  const auto mine = static_cast<std::size_t>(getRank());
  made.take = [outputs, mine](const OfRanks& ranks, std::uint64_t series) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const Given& given = ranks[rank].at(mine);
      TORCH_CHECK_WITH(DistBackendError, given.count == outputs[rank].numel(), "all_to_all: rank ",
                       rank, " sends ", given.count, " elements to rank ", mine, ", which expects ",
                       outputs[rank].numel(), " of it");
      take(outputs[rank], given, series_of(series, (rank * ranks.size()) + mine));
    }
  };
  return run(std::move(made), OpType::ALLTOALL, options.asyncOp, peers(true, true));
}

GroupShape SimulatedGroup::with_peer(int peer) const {
  if (peer == getRank()) return {};
  const auto place = static_cast<std::size_t>(peer);
  const auto mine = static_cast<std::size_t>(getRank());
  const bool is_known = peer >= 0 && place < machines_.size() && mine < machines_.size();
  return {2, is_known && machines_[place] != machines_[mine] ? 2 : 1};
}

std::string SimulatedGroup::key_of_pair(int peer, c10::Device device) const {
  const bool has_own = !is_coalescing_ && !is_successor_ && !getBoundDeviceId();
  if (!has_own) return std::to_string(device.index());
  return std::to_string(std::min(getRank(), peer)) + ":" +
         std::to_string(std::max(getRank(), peer));
}

// Runs a send or a receive. NCCL moves a device tensor on the communicator's stream, never on the
// program's current stream. PyTorch tells its allocator that the communicator's stream uses the
// tensor.
SimulatedGroup::WorkPtr SimulatedGroup::point_to_point(Collective collective, OpType type,
                                                       int peer) {
  const Tensors& some = collective.inputs.empty() ? collective.outputs : collective.inputs;
  if (!is_on_device(some) || !is_nccl_) return run(std::move(collective), type, /*is_async=*/true);
  ++sequence_;
  const Tensor moved = some[0];
  const c10::Device device = moved.device();
  const DeviceScope on(device.index());
  const std::string key = key_of_pair(peer, device);
  const std::string pattern = type == OpType::SEND ? "to " + std::to_string(peer) + " from "
                                                   : "to  from " + std::to_string(peer);
  need_communicator(number_, device.index(), key, pattern);
  runtime().pass_host_time(device.index(), kCollectiveHostNs);
  const c10::Stream stream = stream_of(key, device);
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  c10::Event ready(c10::DeviceType::CUDA);
  ready.record(guard.getStream(device));
  ready.block(stream);
  const Transfer transfer = transfer_of(collective, device.index());
  Tensors outputs = collective.outputs;
  auto pending = std::make_shared<Pending>(std::move(collective));
  if (is_coalescing_) {
    coalesce(transfer, type);
  } else {
    launch(transfer, stream, nullptr);
  }
  guard.recordDataPtrOnStream(moved.storage().data_ptr(), stream);
  auto work = c10::make_intrusive<SimulatedWork>(
      getRank(), type, std::vector<std::shared_ptr<Pending>>{pending}, std::move(outputs), device);
  if (is_coalescing_) {
    coalesced_.push_back(pending);
    coalesced_stream_ = stream;
    is_coalesced_async_ = true;
    return work;
  }
  let_go(device.index());
  work->record_end(stream);
  return work;
}

SimulatedGroup::WorkPtr SimulatedGroup::send(Tensors& tensors, int to, int tag) {
  Collective made = make("send", count_of(tensors[0]), tensors, {});
  made.traffic = Traffic::sent;
  made.meeting.to = to;
  made.among = with_peer(to);
  made.meeting.tag = is_nccl_ ? 0 : tag;
  return point_to_point(std::move(made), OpType::SEND, to);
}

SimulatedGroup::WorkPtr SimulatedGroup::recv(Tensors& tensors, int from, int tag) {
  Collective made = make("recv", count_of(tensors[0]), {}, tensors);
  made.traffic = Traffic::sent;
  made.meeting.from = from;
  made.among = with_peer(from);
  made.meeting.tag = is_nccl_ ? 0 : tag;
  made.take = [tensor = tensors[0]](const OfRanks& ranks, std::uint64_t series) {
    if (!ranks.empty()) take(tensor, ranks[0].at(0), series);
  };
  return point_to_point(std::move(made), OpType::RECV, from);
}

SimulatedGroup::WorkPtr SimulatedGroup::recvAnysource(Tensors& tensors, int tag) {
  TORCH_CHECK(!is_nccl_, "ProcessGroupNCCL does not support recvAnysource");
  constexpr int kAny = -2;
  return recv(tensors, kAny, tag);
}

SimulatedGroup::WorkPtr SimulatedGroup::barrier(const c10d::BarrierOptions& options) {
  if (!is_nccl_) {
    Tensors none{host_numbers({})};
    Collective made = make("barrier", "", none, none);
    return run_on_host(std::move(made), OpType::BARRIER, /*is_async=*/false);
  }
  const c10::DeviceIndex index = options.device ? options.device->index()
                                 : !options.device_ids.empty()
                                     ? static_cast<c10::DeviceIndex>(options.device_ids.front())
                                 : getBoundDeviceId() ? getBoundDeviceId()->index()
                                                      : runtime().current_device();
  const c10::Device device(c10::DeviceType::CUDA, index);
  const DeviceScope on(index);
  const OperationScope scope(runtime().name("barrier"), Role::temporary);
  const auto options_of = at::TensorOptions().device(device).dtype(at::kFloat);
  if (is_successor_ && !barrier_.defined()) barrier_ = at::empty({1}, options_of);
  const Tensors tensors{is_successor_ ? barrier_ : at::zeros({1}, options_of)};
  Collective made = make("barrier", "", tensors, tensors);
  const WorkPtr work = run(std::move(made), OpType::BARRIER, options.asyncOp);
  if (options.asyncOp) {
    static_cast<SimulatedWork*>(work.get())->block_host();
  } else {
    runtime().synchronize(index);
  }
  return work;
}

void SimulatedGroup::monitoredBarrier(const c10d::BarrierOptions&, bool) {
  Tensors none{host_numbers({})};
  Collective made = make("monitored_barrier", "", none, none);
  run_on_host(std::move(made), OpType::BARRIER, /*is_async=*/false);
}

void SimulatedGroup::eagerConnectSingleDevice(at::Device device) {
  if (is_nccl_) need_communicator(number_, device.index(), std::to_string(device.index()), "");
}

}  // namespace plimsoll::simulated
