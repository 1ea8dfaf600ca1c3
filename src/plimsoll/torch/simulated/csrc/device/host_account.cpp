#include "device/host_account.h"

#include <atomic>

namespace plimsoll::simulated {
namespace {

HostAccount own;
std::atomic<HostAccount*> current = &own;

}  // namespace

void note_absent(std::int64_t bytes) {
  HostAccount& account = *current;
  const std::int64_t now = std::atomic_ref(account.absent).fetch_add(bytes) + bytes;
  const std::atomic_ref most(account.most_absent);
  std::int64_t before = most;
  while (before < now && !most.compare_exchange_weak(before, now)) {
  }
}

void note_extra(std::int64_t bytes) { std::atomic_ref(current.load()->extra) += bytes; }

void account_host_in(HostAccount* account) { current = account; }

HostAccount read_host_account() {
  HostAccount& account = *current;
  HostAccount copy;
  copy.absent = std::atomic_ref(account.absent);
  copy.most_absent = std::atomic_ref(account.most_absent).exchange(copy.absent);
  copy.extra = std::atomic_ref(account.extra);
  return copy;
}

}  // namespace plimsoll::simulated
