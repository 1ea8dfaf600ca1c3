#include "host_account.h"

#include <atomic>

#include "export.h"
#include "memory.h"

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

// From now on, of this process; what was noted before stays where it is.
PLIMSOLL_EXPORT void plimsoll_account_host_in(HostAccount* account) { current = account; }

PLIMSOLL_EXPORT void plimsoll_read_host(HostAccount* copy) {
  HostAccount& account = *current;
  copy->absent = std::atomic_ref(account.absent);
  copy->most_absent = std::atomic_ref(account.most_absent).exchange(copy->absent);
  copy->extra = std::atomic_ref(account.extra);
}

PLIMSOLL_EXPORT uint64_t plimsoll_pinned_written_bytes() { return pinned_written_bytes(); }
PLIMSOLL_EXPORT uint64_t plimsoll_registered_bytes() { return registered_bytes(); }

}  // namespace plimsoll::simulated
