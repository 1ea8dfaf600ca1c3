// Tests the prediction of a request's address from the earlier steps of a repetitive program.

#include "plimsoll/allocator/elastic/books/repetition.h"

#include <array>
#include <cstddef>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

using Expected = std::array<Address, 2>;

// A program that repeats a step. Each request gets an address of its own.
class Program {
 public:
  explicit Program(std::vector<Bytes> step) : step_(std::move(step)) { past_.open(); }

  // `right` has the addresses of the same request one step ago and two steps ago. `expected` has
  // the addresses that `Repetition` predicted.
  struct Answer {
    Expected expected;
    Expected right;
  };
  Answer request() {
    const std::size_t period = step_.size();
    const Bytes size = step_[count_ % period];
    const auto before = [&](std::size_t steps) {
      return count_ < steps * period ? 0 : address_of(count_ - steps * period);
    };
    const Answer answer{past_.expect_both(size), {before(1), before(2)}};
    CHECK(past_.expect_both(size) == answer.expected);
    past_.note(size, address_of(count_++));
    return answer;
  }
  void request_of(Bytes size) {
    static_cast<void>(past_.expect_both(size));
    past_.note(size, 1);
  }
  // Makes the requests of one step, and returns how many were predicted right.
  std::size_t right_in_a_step() {
    std::size_t right = 0;
    for (std::size_t i = 0; i < step_.size(); ++i) {
      const Answer answer = request();
      if (answer.expected == answer.right) ++right;
    }
    return right;
  }

 private:
  [[nodiscard]] static Address address_of(std::size_t number) { return (number + 1) * kGranule; }

  std::vector<Bytes> step_;
  Repetition past_;
  std::size_t count_ = 0;
};

// Returns the request sizes of several equal layers, with other requests before and after them.
std::vector<Bytes> layers(std::size_t count) {
  std::vector<Bytes> step{500_MiB, 3_MiB};
  for (std::size_t i = 0; i < count; ++i) {
    for (const Bytes size : {12_MiB, 36_MiB, 12_MiB, 48_MiB}) step.push_back(size);
  }
  step.push_back(90_MiB);
  return step;
}

}  // namespace

TEST(repetition_expects_a_request_where_it_lay_in_the_two_steps_before) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{12}, std::size_t{400}}) {
    Program program(layers(count));
    for (int step = 0; step < 3; ++step) program.right_in_a_step();
    CHECK_EQUAL(program.right_in_a_step(), layers(count).size());
  }
  Program one({20_MiB});
  for (int i = 0; i < 20; ++i) one.request();
  CHECK_EQUAL(one.right_in_a_step(), std::size_t{1});
}

TEST(repetition_expects_nothing_of_what_it_never_saw) {
  Program program(layers(12));
  for (std::size_t i = 0; i < 3; ++i) CHECK(program.request().expected == Expected{});
  Repetition closed;
  for (int i = 0; i < 100; ++i) {
    closed.note(20_MiB, kGranule);
    CHECK(closed.expect_both(20_MiB) == Expected{});
  }
}

TEST(repetition_finds_its_way_back_after_requests_that_are_new) {
  Program program(layers(12));
  for (int step = 0; step < 4; ++step) program.right_in_a_step();
  program.request_of(7_MiB);
  program.request_of(77_MiB);
  const std::size_t lost = layers(12).size() - program.right_in_a_step();
  CHECK(lost > 0 && lost <= layers(12).size());
  program.right_in_a_step();
  program.right_in_a_step();
  CHECK_EQUAL(program.right_in_a_step(), layers(12).size());
}

TEST(repetition_finds_its_way_back_sooner_to_a_step_ago_than_to_a_layer_ago) {
  const auto lost_in = [](Bytes requests) {
    Repetition past;
    past.open();
    Address next = 0;
    const auto is_expected = [&](Bytes size) {
      const bool expected = past.expect(size) != 0;
      past.note(size, ++next);
      return expected;
    };
    std::size_t lost = 0;
    for (Bytes i = 1; i <= requests; ++i) is_expected(i * 1_MiB);
    is_expected(2000_MiB);
    for (Bytes i = 1; i <= requests; ++i) {
      if (!is_expected(i * 1_MiB)) ++lost;
    }
    return lost;
  };
  CHECK_EQUAL(lost_in(20), Repetition::kContext);
  CHECK_EQUAL(lost_in(Repetition::kLeastStep), Repetition::kShortContext);
}

TEST(repetition_forgets_what_is_too_long_ago) {
  Random random(3);
  std::vector<Bytes> step(Repetition::kCapacity + 10);
  for (Bytes& size : step) size = 1_MiB * random.between(1, 1000);
  Program program(step);
  program.right_in_a_step();
  CHECK_EQUAL(program.right_in_a_step(), std::size_t{0});
  // The history has room for two of these shorter steps.
  step.resize(Repetition::kCapacity / 2 - 10);
  Program shorter(step);
  for (int i = 0; i < 3; ++i) shorter.right_in_a_step();
  CHECK(shorter.right_in_a_step() > step.size() * 9 / 10);
}

TEST(repetition_is_sure_once_as_many_requests_repeat_as_tell_one_from_others) {
  Repetition past;
  past.open();
  Bytes count = 0;
  const auto request = [&](Bytes size) {
    static_cast<void>(past.expect_both(size));
    past.note(size, ++count);
  };
  const auto step = [&] {
    for (Bytes i = 1; i <= 30; ++i) request(i * 1_MiB);
  };
  step();
  for (Bytes i = 1; i <= 2 * Repetition::kContext; ++i) {
    CHECK(!past.is_sure());
    request(i * 1_MiB);
  }
  CHECK(past.is_sure());
  request(77_MiB);
  CHECK(!past.is_sure());
}

TEST(repetition_expects_only_addresses_of_requests_of_the_same_size) {
  Random random(5);
  Repetition past;
  past.open();
  std::vector<Bytes> size_at{0};  // indexed by address
  std::size_t expected = 0;
  for (Bytes i = 0; i < 60'000; ++i) {
    const Bytes size = 1_MiB * (i % 40 < 30 ? i % 40 % 7 + 1 : random.between(1, 4));
    for (const Address address : past.expect_both(size)) {
      if (address == 0) continue;
      CHECK_EQUAL(size_at[address], size);
      ++expected;
    }
    past.note(size, size_at.size());
    size_at.push_back(size);
  }
  CHECK(expected > 60'000);
}

}  // namespace plimsoll
