// The backend of a process group on simulated GPUs. It takes memory and streams as ProcessGroupNCCL
// does; for host tensors it acts as gloo. The ranks exchange bytes with the functions of
// exchange.h.
//
// The rules are those of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp. Since PyTorch 2.15, a
// program that asks for "nccl" gets a new class, here called the successor of ProcessGroupNCCL. The
// group then follows the successor's rules.
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

  // `number` identifies the group in exchanges with other ranks. `machines` has the number of each
  // rank's machine.
  SimulatedGroup(std::string name, std::uint64_t number, int rank, int size,
                 std::vector<std::int64_t> machines, bool has_high_priority, bool is_successor);
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
  // A collective that the watchdog has not yet seen complete. Its shelf (see work.h) keeps the
  // collective's tensors alive.
  struct Running {
    std::shared_ptr<Shelf> shelf;
    double ends_ns;
  };

  // The GPU's time for a collective, and whether its bytes travel from machine to machine.
  struct Transfer {
    double ns = 0;
    bool crosses_network = false;
  };

  // Runs a collective. `pattern` names the connections that NCCL makes for the collective: "ring",
  // or the ranks to which this rank sends and from which it receives.
  WorkPtr run(Collective collective, c10d::OpType type, bool is_async,
              const std::string& pattern = kRing);
  WorkPtr run_on_host(Collective collective, c10d::OpType type, bool is_async);
  WorkPtr point_to_point(Collective collective, c10d::OpType type, int peer);
  [[nodiscard]] Collective make(const char* what, std::string agreed, Tensors inputs,
                                Tensors outputs) const;
  c10::Stream stream_of(const std::string& key, c10::Device device);
  [[nodiscard]] Transfer transfer_of(const Collective& collective, c10::DeviceIndex device) const;
  void coalesce(const Transfer& transfer, c10d::OpType type);
  // Queues a transfer. The watchdog may release the shelf's tensors once the transfer is done.
  void launch(const Transfer& transfer, const c10::Stream& stream,
              const std::shared_ptr<Shelf>& shelf);
  // Returns the shape of the group that this rank and `peer` form.
  [[nodiscard]] GroupShape with_peer(int peer) const;
  // Releases the tensors of all collectives that the watchdog has seen complete by now.
  void let_go(c10::DeviceIndex device);
  // Returns the key of the communicator for sends between this rank and `peer`. The two ranks have
  // a communicator of their own, unless the group's communicator serves them.
  [[nodiscard]] std::string key_of_pair(int peer, c10::Device device) const;
  [[nodiscard]] std::string peers(bool sends, bool receives, bool with_itself = false) const;

  static constexpr const char* kRing = "ring";

  std::string name_;
  bool is_nccl_;
  bool is_successor_;  // whether the group follows the rules of ProcessGroupNCCL's successor
  std::uint64_t number_;
  std::vector<std::int64_t> machines_;
  GroupShape shape_;
  bool has_high_priority_;
  c10::intrusive_ptr<Options> options_;
  std::uint64_t sequence_ = 0;
  std::mutex mutex_;  // protects the members below
  std::map<std::string, c10::Stream> streams_;
  std::deque<Running> running_;
  double watched_since_ns_;
  at::Tensor barrier_;  // ProcessGroupNCCL's successor reuses this tensor for each barrier
  // The state between startCoalescing and endCoalescing.
  bool is_coalescing_ = false;
  bool is_coalesced_async_ = false;
  bool coalesced_crosses_network_ = false;
  double coalesced_sent_ns_ = 0, coalesced_received_ns_ = 0;
  std::vector<std::shared_ptr<Pending>> coalesced_;
  Tensors coalesced_tensors_;
  Tensors coalesced_outputs_;
  std::optional<c10::Stream> coalesced_stream_;
};

}  // namespace plimsoll::simulated
