// A process group's backend on simulated GPUs. It uses memory and streams as ProcessGroupNCCL does,
// and acts as gloo for tensors on the host. exchange.h exchanges numbers with the other ranks.
//
// The rules are those of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; since 2.15 those of its
// successor, which programs get under the same name.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/backends.h"
#include "collectives/work.h"

namespace plimsoll::simulated {

class SimulatedGroup final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Takes the group's `number`, by which the exchange identifies it.
  SimulatedGroup(std::string name, std::uint64_t number, int rank, int size, bool has_high_priority,
                 bool is_successor);
  ~SimulatedGroup() override;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return is_nccl_; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& to_take,
                        std::vector<std::int64_t>& to_give,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool waits_for_all) override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void eagerConnectSingleDevice(at::Device device) override;
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void waitForPendingWorks() override {}
  void enableCollectivesTiming() override {}
  void abort() override { shutdown(); }
  void shutdown() override;

 private:
  // A collective that may still run, and the tensors that it holds.
  struct Running {
    std::shared_ptr<Shelf> shelf;
    double ends_ns;
  };

  // Runs a collective. `pattern` gives the connections that NCCL makes: "ring", or the ranks that
  // this one sends to and receives from.
  WorkPtr run(Collective collective, c10d::OpType type, bool is_async,
              const std::string& pattern = kRing);
  WorkPtr run_on_host(Collective collective, c10d::OpType type, bool is_async);
  WorkPtr point_to_point(Collective collective, c10d::OpType type, int peer);
  [[nodiscard]] Collective make(const char* what, std::string agreed, Tensors inputs,
                                Tensors outputs) const;
  c10::Stream stream_of(const std::string& key, c10::Device device);
  // Queues the transfer of bytes, and lets the watchdog release the shelf's tensors.
  void launch(double bytes, const c10::Stream& stream, const std::shared_ptr<Shelf>& shelf);
  // Releases the tensors of collectives that the watchdog has seen complete.
  void let_go(c10::DeviceIndex device);
  // Returns the key of a communicator of two ranks alone, for pairs that the group's communicator
  // does not serve.
  [[nodiscard]] std::string key_of_pair(int peer, c10::Device device) const;
  [[nodiscard]] std::string peers(bool sends, bool receives, bool with_itself = false) const;

  static constexpr const char* kRing = "ring";

  std::string name_;
  bool is_nccl_;
  bool is_successor_;  // the backend is ProcessGroupNCCL's successor
  std::uint64_t number_;
  bool has_high_priority_;
  c10::intrusive_ptr<Options> options_;
  std::uint64_t sequence_ = 0;
  std::mutex mutex_;  // protects the members below
  std::map<std::string, c10::Stream> streams_;
  std::deque<Running> running_;
  double watched_since_ns_;
  at::Tensor barrier_;  // kept, as the successor does
  // State between startCoalescing and endCoalescing.
  bool is_coalescing_ = false;
  bool is_coalesced_async_ = false;
  std::vector<std::shared_ptr<Pending>> coalesced_;
  Tensors coalesced_tensors_;
  Tensors coalesced_outputs_;
  std::optional<c10::Stream> coalesced_stream_;
};

}  // namespace plimsoll::simulated
