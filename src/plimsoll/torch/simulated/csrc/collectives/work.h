// A collective under way: its waiters, and the tensors that it holds.
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

namespace plimsoll::simulated {

// A collective on one rank: its tensors, and how it uses those of all ranks.
struct Collective {
  Meeting meeting;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gives;  // in most collectives the inputs
  std::function<void(const std::vector<std::vector<Given>>&, std::uint64_t series)> take;
  double moved_bytes = 0;  // over this rank's slowest link
};

// Tensors that a collective works on, whose memory stays in use until it is done. The work and the
// group's watchdog hold it. It is emptied when the program waits, or when the watchdog sees that
// the collective is done.
class Shelf {
 public:
  void stash(const std::vector<at::Tensor>& tensors);
  void clear();
  [[nodiscard]] bool is_empty() const;
  // Returns the bytes of tensors that only this shelf holds.
  [[nodiscard]] std::uint64_t own_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<at::Tensor> tensors_;
};

// A meeting whose result is taken once.
class Pending {
 public:
  explicit Pending(Collective collective);
  // Waits for the other ranks. Returns the sender's rank if the receive was from any rank.
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
  // Makes a work on `device`, which is the CPU for collectives of the host.
  SimulatedWork(int rank, c10d::OpType type, std::vector<std::shared_ptr<Pending>> pending,
                std::vector<at::Tensor> outputs, c10::Device device);

  // Notes that the work is queued. It ends when all work that is on the stream now ends.
  void record_end(const c10::Stream& stream);
  // Makes `wait` block the host, as for a barrier.
  void block_host() { blocks_host_ = true; }
  // Releases the tensors when the program requests the future, because that counts as waiting.
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
