// A running collective: the object by which the program waits for the collective (PyTorch's Work),
// and the tensors that the collective keeps alive.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/backends.h"
#include "collectives/exchange.h"
#include "collectives/given.h"
#include "timing/timing.h"

namespace plimsoll::simulated {

// One rank's part in a collective: its tensors, and a function that takes the contributions of all
// ranks.
struct Collective {
  Meeting meeting;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gives;  // the tensors that this rank contributes; usually `inputs`
  std::function<void(const std::vector<std::vector<Given>>&, std::uint64_t series)> take;
  double bytes = 0;  // of the rank's inputs or its outputs, whichever have more
  Traffic traffic = Traffic::exchanged;
  // The ranks among which the bytes travel; all ranks of the group if not set.
  std::optional<GroupShape> among;
};

// The tensors of a collective, whose memory must not be reused before the collective is done. Both
// the work and the group's watchdog hold the shelf. It is emptied when the program waits for the
// work, or when the watchdog sees that the collective is done.
class Shelf {
 public:
  void stash(const std::vector<at::Tensor>& tensors);
  void clear();
  [[nodiscard]] bool is_empty() const;
  // Returns the total size, in bytes, of those tensors that only this shelf keeps alive.
  [[nodiscard]] std::uint64_t own_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<at::Tensor> tensors_;
};

// One exchange between ranks. The constructor sends this rank's contribution; `finish` takes the
// result.
class Pending {
 public:
  explicit Pending(Collective collective);
  // Waits for the other ranks and takes the result. If the exchange is a receive that accepts any
  // sender, returns the sender's rank.
  std::int64_t finish();

 private:
  std::mutex mutex_;
  Collective collective_;
  std::uint64_t number_;
  std::int64_t from_ = -1;
  bool is_done_ = false;
};

class SimulatedWork final : public c10d::Work {
 public:
  // Makes a work on `device`; for collectives of host tensors, that is the CPU.
  SimulatedWork(int rank, c10d::OpType type, std::vector<std::shared_ptr<Pending>> pending,
                std::vector<at::Tensor> outputs, c10::Device device);

  // Notes that the collective is queued completely. It ends when the stream has done everything
  // that is queued on the stream now.
  void record_end(const c10::Stream& stream);
  // Makes `wait` block the host until the current stream is done. Otherwise `wait` only makes the
  // current stream wait for the collective. An asynchronous barrier calls this function.
  void block_host() { blocks_host_ = true; }
  // Makes `getFuture` do all that `wait` does. So `getFuture` also releases the tensors.
  void let_go_with_future() { future_waits_ = true; }
  [[nodiscard]] const std::shared_ptr<Shelf>& shelf() const { return shelf_; }

  bool isCompleted() override;
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override { return 0; }
  int sourceRank() const override { return source_rank_; }
  void abort() override {}
  void finish_all();

 private:
  std::vector<std::shared_ptr<Pending>> pending_;
  std::vector<at::Tensor> outputs_;
  c10::Device device_;
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
  std::optional<c10::Event> end_;
  bool blocks_host_ = false;
  bool future_waits_ = false;
  int source_rank_ = -1;
};

}  // namespace plimsoll::simulated
