#include "collectives/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "device/memory.h"
#include "device/runtime.h"

namespace plimsoll::simulated {

void Shelf::stash(const std::vector<at::Tensor>& tensors) {
  const std::lock_guard lock(mutex_);
  tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
}

void Shelf::clear() {
  std::vector<at::Tensor> tensors;
  const std::lock_guard lock(mutex_);
  tensors.swap(tensors_);
}

bool Shelf::is_empty() const {
  const std::lock_guard lock(mutex_);
  return tensors_.empty();
}

std::uint64_t Shelf::own_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (auto tensor = tensors_.begin(); tensor != tensors_.end(); ++tensor) {
    const auto is_same = [&](const at::Tensor& other) { return other.is_same(*tensor); };
    const bool is_counted = std::any_of(tensors_.begin(), tensor, is_same);
    if (is_counted || !tensor->defined()) continue;
    // The storage may have a further owner that lives no longer than the tensor. A view keeps its
    // tensor alive, so no view is left if the tensor has no owner but this shelf.
    const auto here = static_cast<std::size_t>(std::count_if(tensor, tensors_.end(), is_same));
    const bool is_own = tensor->storage().use_count() == 1 || tensor->use_count() == here;
    if (is_own) bytes += tensor->storage().nbytes();
  }
  return bytes;
}

Pending::Pending(Collective collective)
    : collective_(std::move(collective)), number_([this] {
        std::vector<Given> given;
        for (const at::Tensor& tensor : collective_.gives) given.push_back(give(tensor));
        return post(collective_.meeting, encode(given));
      }()) {}

std::int64_t Pending::finish() {
  const std::lock_guard lock(mutex_);
  if (is_done_) return from_;
  const Collected collected = collect(number_);
  is_done_ = true;
  from_ = collected.from;
  if (collective_.take) {
    std::vector<std::vector<Given>> of_ranks;
    for (const std::string& bytes : collected.given) of_ranks.push_back(decode(bytes));
    collective_.take(of_ranks, collected.series);
  }
  collective_ = {};
  return from_;
}

SimulatedWork::SimulatedWork(int rank, c10d::OpType type,
                             std::vector<std::shared_ptr<Pending>> pending,
                             std::vector<at::Tensor> outputs, c10::Device device)
    : Work(rank, type),
      pending_(std::move(pending)),
      outputs_(std::move(outputs)),
      device_(device) {}

void SimulatedWork::record_end(const c10::Stream& stream) {
  end_.emplace(c10::DeviceType::CUDA);
  end_->record(stream);
}

void SimulatedWork::finish_all() {
  for (const auto& pending : pending_) source_rank_ = static_cast<int>(pending->finish());
  pending_.clear();
}

bool SimulatedWork::isCompleted() {
  finish_all();
  return !end_ || end_->query();
}

void SimulatedWork::synchronize() {
  finish_all();
  if (!end_) return;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  end_->block(guard.getStream(device_));
  shelf_->clear();
  if (blocks_host_) runtime().synchronize(device_.index());
}

bool SimulatedWork::wait(std::chrono::milliseconds) {
  synchronize();
  return true;
}

// Returns a completed future. On a real GPU, too, the future completes as soon as the collective is
// queued.
c10::intrusive_ptr<c10::ivalue::Future> SimulatedWork::getFuture() {
  if (future_waits_) {
    synchronize();
  } else {
    finish_all();
  }
  const std::vector<c10::Device> devices =
      device_.is_cpu() ? std::vector<c10::Device>{} : std::vector<c10::Device>{device_};
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), devices);
  future->markCompleted(c10::IValue(outputs_));
  return future;
}

}  // namespace plimsoll::simulated
