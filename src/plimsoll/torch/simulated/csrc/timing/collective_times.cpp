// The times of NCCL's collectives.
//
// The rates were measured on two H200s (benchmarks/collectives.py). The latencies are those of
// NCCL's own cost model (src/graph/tuning.cc, 2.28). More than two ranks, other links, and the
// network between machines are extrapolated.
#include <algorithm>
#include <array>
#include <cmath>

#include "chips/chip.h"
#include "timing/timing.h"

namespace plimsoll::simulated {
namespace {

// Parts of the stated rates that large collectives reach. Two H200s reach 0.77 to 0.84 of NVLink's
// 450 bytes/ns with all_reduce, all_to_all, broadcast and sends, and 0.60 with all_gather and
// reduce_scatter.
constexpr double kReachedLink = .78;
constexpr double kReachedByParts = .60;
constexpr double kReachedNetwork = .9;

// A protocol of NCCL's: the time until the first bytes move, the time of a hop between two ranks on
// one machine and on two, and the part of the rate that it reaches.
struct Protocol {
  double base_ns, near_hop_ns, far_hop_ns, rate;
};
// LL and Simple; LL128 lies between them.
constexpr std::array<Protocol, 2> kRing{{{6600, 600, 2700, .25}, {8400, 3400, 14000, 1}}};
constexpr std::array<Protocol, 2> kTree{{{6800, 600, 5000, .25}, {8400, 4000, 14000, .85}}};

struct Hops {
  double near = 0, far = 0;
};

// Returns the time that the fastest protocol needs.
double fastest_ns(const std::array<Protocol, 2>& protocols, Hops hops, double moving_ns) {
  double least = INFINITY;
  for (const Protocol& each : protocols) {
    least = std::min(least, each.base_ns + (hops.near * each.near_hop_ns) +
                                (hops.far * each.far_hop_ns) + (moving_ns / each.rate));
  }
  return least;
}

}  // namespace

double collective_ns(Traffic traffic, double bytes, GroupShape group, const DeviceProperties& on) {
  if (group.ranks < 2) return 0;
  const Chip& chip = chip_of(on);
  const auto ranks = static_cast<double>(group.ranks);
  const auto machines = static_cast<double>(group.machines);
  const double on_each = std::max(1.0, ranks / machines);  // ranks on each machine
  const auto stated = static_cast<double>(chip.link_bytes_per_ns);
  const double link = (stated > 0 ? stated : on.copy_bytes_per_ns) *
                      (traffic == Traffic::collected ? kReachedByParts : kReachedLink);
  const double network = static_cast<double>(chip.network_gbit_per_s) / 8 * kReachedNetwork;
  // Rings leave a machine through the network cards of all its ranks.
  const double ring = machines > 1 ? std::min(link, on_each * network) : link;
  const double others = (ranks - 1) / ranks;  // the part of the bytes that is for other ranks
  const Hops around{(on_each - 1) * machines, machines > 1 ? machines - 1 : 0};
  switch (traffic) {
    case Traffic::reduced: {
      const double moving = 2 * bytes * others / ring;
      const Hops tree{2 * (on_each - 1), 2 * std::ceil(std::log2(machines))};
      return std::min(fastest_ns(kRing, {2 * around.near, 2 * around.far}, moving),
                      fastest_ns(kTree, tree, moving));
    }
    case Traffic::collected: return fastest_ns(kRing, around, bytes * others / ring);
    case Traffic::passed_on: return fastest_ns(kRing, around, bytes / ring);
    case Traffic::exchanged: {
      const double near = bytes * (on_each - 1) / ranks / link;
      const double far = bytes * (ranks - on_each) / ranks / network;
      return fastest_ns(kRing, {1, machines > 1 ? 1.0 : 0.0}, std::max(near, far));
    }
    case Traffic::sent:
      return fastest_ns(kRing, {machines > 1 ? 0.0 : 1.0, machines > 1 ? 1.0 : 0.0},
                        bytes / (machines > 1 ? network : link));
  }
  return 0;
}

}  // namespace plimsoll::simulated
