#include "plimsoll/events/statistics.h"

#include <array>

namespace plimsoll {
namespace {

template <typename Self>
auto pool_stats(Self& self) {
  return std::array{
      std::pair{"allocation", &self.allocation},
      std::pair{"segment", &self.segment},
      std::pair{"active", &self.active},
      std::pair{"inactive_split", &self.inactive_split},
      std::pair{"allocated_bytes", &self.allocated_bytes},
      std::pair{"reserved_bytes", &self.reserved_bytes},
      std::pair{"active_bytes", &self.active_bytes},
      std::pair{"inactive_split_bytes", &self.inactive_split_bytes},
      std::pair{"requested_bytes", &self.requested_bytes},
  };
}

template <typename Self, typename Function>
void for_each_stat(Self& self, Function function) {
  for (const auto& [name, pools] : pool_stats(self)) {
    function(std::string(name) + ".all", pools->all);
    function(std::string(name) + ".small_pool", pools->small_pool);
    function(std::string(name) + ".large_pool", pools->large_pool);
  }
  for (auto& [pool, pools] : self.reserved_bytes_by_private_pools) {
    const std::string name = "reserved_bytes_by_private_pools." + std::to_string(pool.first) + "_" +
                             std::to_string(pool.second);
    function(name + ".all", pools.all);
    function(name + ".small_pool", pools.small_pool);
    function(name + ".large_pool", pools.large_pool);
  }
  function(std::string("shared_allocated_bytes"), self.shared_allocated_bytes);
  function(std::string("shared_reserved_bytes"), self.shared_reserved_bytes);
  function(std::string("paused_bytes"), self.paused_bytes);
  function(std::string("oversize_allocations"), self.oversize_allocations);
  function(std::string("oversize_segments"), self.oversize_segments);
}

}  // namespace

void Statistics::reset_peak() {
  for_each_stat(*this, [](const std::string&, Stat& stat) { stat.reset_peak(); });
}

void Statistics::reset_accumulated() {
  for_each_stat(*this, [](const std::string&, Stat& stat) { stat.reset_accumulated(); });
  num_alloc_retries = num_ooms = num_sync_all_streams = 0;
  num_device_alloc = num_device_free = num_oom_rejections = num_spills = 0;
}

std::vector<std::pair<std::string, std::int64_t>> Statistics::flatten(bool with_oom_rejections,
                                                                      bool with_tiers) const {
  std::vector<std::pair<std::string, std::int64_t>> result;
  for_each_stat(*this, [&](const std::string& name, const Stat& stat) {
    if (!with_tiers && (name.starts_with("shared_") || name.starts_with("paused_"))) return;
    result.emplace_back(name + ".current", stat.current);
    result.emplace_back(name + ".peak", stat.peak);
    result.emplace_back(name + ".allocated", stat.allocated);
    result.emplace_back(name + ".freed", stat.freed);
  });
  result.emplace_back("num_alloc_retries", num_alloc_retries);
  result.emplace_back("num_ooms", num_ooms);
  result.emplace_back("num_sync_all_streams", num_sync_all_streams);
  result.emplace_back("num_device_alloc", num_device_alloc);
  result.emplace_back("num_device_free", num_device_free);
  if (with_oom_rejections) result.emplace_back("num_oom_rejections", num_oom_rejections);
  result.emplace_back("max_split_size", max_split_size);
  if (with_tiers) result.emplace_back("num_spills", num_spills);
  return result;
}

}  // namespace plimsoll
