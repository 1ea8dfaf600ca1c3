#include "plimsoll/simulated/shared_card.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <span>
#include <system_error>
#include <thread>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string_view>
#endif

namespace plimsoll {

// The content of the shared file. A new file holds zeros: no users, and a free lock.
struct SharedCard::State {
  std::atomic<std::int64_t> holder;  // the process that has the lock, 0 for none
  std::uint64_t count;
  std::uint64_t without_place;
  Bytes together;
  Bytes at_most;
  User users[kMostUsers];

  [[nodiscard]] std::span<User> all() { return {users, count}; }
};

namespace {

#ifdef __linux__
std::int64_t this_process() { return getpid(); }

// Returns the time at which a process began, in clock ticks; 0 if there is no such process, or if
// it is a zombie.
std::uint64_t start_of(std::int64_t process) {
  char text[1024];
  std::snprintf(text, sizeof text, "/proc/%lld/stat", static_cast<long long>(process));
  const int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = read(file, text, sizeof text);
  close(file);
  if (size <= 0) return 0;
  // The process's name, in parentheses, may contain anything, so fields are counted from its end.
  std::string_view rest(text, static_cast<std::size_t>(size));
  rest.remove_prefix(std::min(rest.rfind(')') + 2, rest.size()));
  if (rest.empty() || rest.front() == 'Z' || rest.front() == 'X') return 0;
  constexpr int kFieldsBefore = 19;
  for (int field = 0; field < kFieldsBefore; ++field) {
    rest.remove_prefix(std::min(rest.find(' ') + 1, rest.size()));
  }
  std::uint64_t ticks = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), ticks);
  return ticks;
}

void* map_file(const std::string& path, std::size_t size) {
  const auto fail = [&](int number) {
    throw std::system_error(number, std::generic_category(), path);
  };
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) fail(errno);
  // Reserves the file's space: the kernel kills a process that touches a page for which the file
  // system has no room.
  const int status = posix_fallocate(file, 0, static_cast<off_t>(size));
  void* const memory =
      status == 0 ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int number = status == 0 ? errno : status;
  close(file);
  if (memory == MAP_FAILED) fail(number);
  return memory;
}

void unmap(void* memory, std::size_t size) { munmap(memory, size); }
#else
std::int64_t this_process() { return 1; }
std::uint64_t start_of(std::int64_t) { return 1; }
void* map_file(const std::string& path, std::size_t) {
  throw std::system_error(ENOSYS, std::generic_category(), path);
}
void unmap(void*, std::size_t) {}
#endif

}  // namespace

// --- the lock ------------------------------------------------------------------------------------

class SharedCard::Lock {
 public:
  explicit Lock(State& state) : holder_(state.holder) {
    const std::int64_t process = this_process();
    for (int tries = 1; !take_from(0, process); ++tries) {
      if (tries % kTriesBeforeALook == 0) {
        const std::int64_t other = holder_.load();
        if (other != 0 && start_of(other) == 0 && take_from(other, process)) return;
      }
      std::this_thread::yield();
    }
  }
  ~Lock() { holder_.store(0, std::memory_order_release); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  static constexpr int kTriesBeforeALook = 1000;

  bool take_from(std::int64_t expected, std::int64_t process) {
    return holder_.compare_exchange_strong(expected, process, std::memory_order_acquire);
  }

  std::atomic<std::int64_t>& holder_;
};

// --- memory of each process ----------------------------------------------------------------------

SharedCard::SharedCard(const std::string& path)
    : state_(static_cast<State*>(map_file(path, sizeof(State)))) {}

SharedCard::~SharedCard() { unmap(state_, sizeof(State)); }

bool SharedCard::take(Bytes size, Bytes capacity) {
  const Lock lock(*state_);
  User* const user = own();
  if (user == nullptr) return size <= capacity;
  const bool is_higher =
      now() + size > std::min(state_->together, capacity) || user->now + size > user->most_together;
  if (is_higher) drop_ended();
  if (now() + size > capacity) return false;
  user->now += size;
  user->most = std::max(user->most, user->now);
  user->most_together = std::max(user->most_together, user->now);
  state_->together = std::max(state_->together, now());
  return true;
}

void SharedCard::give_back(Bytes size) {
  const Lock lock(*state_);
  // A forked process must not give back memory that its parent still holds.
  if (own_ != nullptr && own_->process == this_process()) own_->now -= std::min(size, own_->now);
}

Bytes SharedCard::used_by_others() {
  const Lock lock(*state_);
  const bool is_own = own_ != nullptr && own_->process == this_process();
  const auto others = [&] { return now() - (is_own ? own_->now : 0); };
  if (others() > 0) drop_ended();
  return others();
}

SharedCard::User* SharedCard::own() {
  const std::int64_t process = this_process();
  if (own_ != nullptr && own_->process == process) return own_;
  drop_ended();
  begin_again();
  if (state_->count == kMostUsers) {
    ++state_->without_place;
    return nullptr;
  }
  own_ = &state_->users[state_->count];
  *own_ = {process, start_of(process)};
  ++state_->count;
  return own_;
}

void SharedCard::drop_ended() {
  for (User& user : state_->all()) {
    if (user.now == 0 || user.process == this_process()) continue;
    if (start_of(user.process) == user.started) continue;
    begin_again();
    user.now = user.most_together = 0;
  }
}

void SharedCard::begin_again() {
  Bytes possible = 0;
  for (const User& user : state_->all()) possible += user.most_together;
  state_->at_most = std::max(state_->at_most, possible);
  for (User& user : state_->all()) user.most_together = user.now;
}

Bytes SharedCard::now() const {
  Bytes sum = 0;
  for (const User& user : state_->all()) sum += user.now;
  return sum;
}

// --- queries -------------------------------------------------------------------------------------

std::vector<SharedCard::User> SharedCard::users() {
  const Lock lock(*state_);
  const auto all = state_->all();
  return {all.begin(), all.end()};
}

Bytes SharedCard::together() {
  const Lock lock(*state_);
  return state_->together;
}

Bytes SharedCard::at_most() {
  const Lock lock(*state_);
  begin_again();
  return state_->at_most;
}

bool SharedCard::is_complete() {
  const Lock lock(*state_);
  return state_->without_place == 0;
}

}  // namespace plimsoll
