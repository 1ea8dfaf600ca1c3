// Tests a MappedSpace with random operations, against a simple model: an array with the state of
// each cell of 256 KiB.

#include "plimsoll/allocator/elastic/books/mapped_space.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "check.h"
#include "plimsoll/allocator/elastic/books/arena.h"
#include "plimsoll/allocator/elastic/plan/place_search.h"
#include "plimsoll/simulated/driver.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr Bytes kCell = 256_KiB;
constexpr Address kBase = Address{1} << 40;
constexpr Bytes kReservation = 48_MiB;
constexpr Bytes kReservations = 2;  // an unused granule of addresses lies between the two

enum class State : char { none = ' ', hole = '.', free = '-', lent = '#', retired = 'x' };

// Keeps the state of each cell of the address space.
class Model {
 public:
  Model() : cells_((kReservations * (kReservation + kGranule)) / kCell, State::none) {}

  void set(Address address, Bytes size, State state) {
    for (std::size_t i = index(address); i < index(address + size); ++i) cells_[i] = state;
  }
  [[nodiscard]] bool is(Address address, Bytes size, State state) const {
    return std::all_of(&cells_[index(address)], &cells_[index(address + size) - 1] + 1,
                       [&](State each) { return each == state; });
  }
  [[nodiscard]] State at(std::size_t i) const { return cells_[i]; }
  [[nodiscard]] std::size_t count() const { return cells_.size(); }

  // Returns the stretches of adjacent cells that are in one of the two states.
  [[nodiscard]] std::vector<AddressRange> stretches(State one, State other) const {
    std::vector<AddressRange> found;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (cells_[i] != one && cells_[i] != other) continue;
      if (found.empty() || found.back().end() != address(i)) found.push_back({address(i), 0});
      found.back().size += kCell;
    }
    return found;
  }
  [[nodiscard]] std::vector<AddressRange> stretches(State one) const { return stretches(one, one); }
  // Returns the fewest bytes that have to be mapped so that `size` bytes in a row are free; nothing
  // if no range of free cells and holes is large enough.
  [[nodiscard]] std::optional<Bytes> least_missing(Bytes size) const {
    std::optional<Bytes> least;
    for (const AddressRange& room : stretches(State::free, State::hole)) {
      for (Address begin = room.address; begin + size <= room.end(); begin += kCell) {
        Bytes missing = 0;
        Address granule = 0;
        for (Address cell = begin; cell < begin + size; cell += kCell) {
          if (cells_[index(cell)] != State::hole || round_down(cell, kGranule) == granule) continue;
          granule = round_down(cell, kGranule);
          missing += kGranule;
        }
        if (missing > 0 && (!least || missing < *least)) least = missing;
      }
    }
    return least;
  }

 private:
  [[nodiscard]] static std::size_t index(Address address) { return (address - kBase) / kCell; }
  [[nodiscard]] static Address address(std::size_t i) { return kBase + i * kCell; }
  std::vector<State> cells_;
};

bool by_address(const FreePiece& a, const FreePiece& b) {
  return a.piece->address < b.piece->address;
}

class SpaceProgram {
 public:
  explicit SpaceProgram(std::uint64_t seed) : random_(seed) {
    for (Bytes i = 0; i < kReservations; ++i) {
      const Address begin = kBase + i * (kReservation + kGranule);
      space().add_reservation(begin, kReservation);
      model_.set(begin, kReservation, State::hole);
    }
  }

  void step() {
    const std::uint64_t choice = random_.below(100);
    if (choice < 30) {
      take();
    } else if (choice < 36) {
      take_at();
    } else if (choice < 66) {
      if (!lent_.empty()) free();
    } else if (choice < 84) {
      choice % 2 == 0 ? fill_place() : add_piece();
    } else if (choice < 91) {
      remove_pieces();
    } else if (choice < 93) {
      retire_hole();
    } else if (choice < 96) {
      return_home();
    } else {
      clear();
    }
    check();
  }

  // Frees all blocks and removes all pieces.
  void end() {
    while (!lent_.empty()) free();
    std::vector<FreePiece> pieces = space().free_pieces(age_);
    std::sort(pieces.begin(), pieces.end(), by_address);
    for (const FreePiece& piece : pieces) removed_.push_back(remove(piece));
    while (space().retired_count() > 0) clear();
    check();
    for (const std::unique_ptr<Piece>& piece : removed_) CHECK(piece->old_mappings.empty());
    removed_.clear();
    CHECK_EQUAL(piece_count(), std::size_t{0});
    CHECK_EQUAL(driver_.handles(), std::size_t{0});
    CHECK_EQUAL(space().free_blocks().count(), std::size_t{0});
    space().check_invariants();
  }

  [[nodiscard]] std::size_t returns_to_places() const { return returns_to_places_; }
  [[nodiscard]] std::size_t returns_home() const { return returns_home_; }

 private:
  [[nodiscard]] MappedSpace& space() { return arena_.large; }
  [[nodiscard]] std::size_t piece_count() {
    std::size_t count = 0;
    space().for_each_piece([&count](const Piece&) { ++count; });
    return count;
  }
  [[nodiscard]] Bytes random_size() { return random_.between(1, 40) * kCell; }

  void lend(Block* block) {
    block->allocated = true;
    lent_.push_back(block);
    model_.set(block->address, block->size, State::lent);
  }

  void take() {
    const Bytes size = random_size();
    std::optional<AddressRange> best;  // the smallest range that suffices; if several, the lowest
    for (const AddressRange& free : model_.stretches(State::free)) {
      if (free.size >= size && (!best || free.size < best->size)) best = free;
    }
    Block* const block = space().take(size);
    CHECK_EQUAL(block != nullptr, best.has_value());
    if (block == nullptr || !best) return;
    CHECK_EQUAL(block->address, best->address);
    CHECK_EQUAL(block->size, size);
    lend(block);
  }

  void take_at() {
    const Bytes size = random_size();
    const Address address = kBase + random_.below(kReservation - size + 1) / kCell * kCell +
                            random_.below(kReservations) * 50_MiB;
    const bool is_free = model_.is(address, size, State::free);
    Block* const block = space().take_at(address, size);
    CHECK_EQUAL(block != nullptr, is_free);
    if (block == nullptr) return;
    CHECK(block->address == address && block->size == size);
    lend(block);
  }

  void free() {
    Block*& block = random_.pick(lent_);
    model_.set(block->address, block->size, State::free);
    note_age(block->address, block->size);
    block->allocated = false;
    space().free(block, age_);
    std::swap(block, lent_.back());
    lent_.pop_back();
  }

  void add(Address address, Bytes size) {
    Handle handle = 0;
    CHECK(driver_.create(size, Tier::dedicated, handle) == Status::success);
    auto piece = std::make_unique<Piece>(size, Tier::dedicated, handle, returned_);
    piece->home = address;
    add(address, std::move(piece));
  }
  void add(Address address, std::unique_ptr<Piece> piece) {
    CHECK(model_.is(address, piece->size, State::hole));
    model_.set(address, piece->size, State::free);
    pieces_.emplace(address, piece.get());
    note_age(address, piece->size);
    space().add_piece(address, std::move(piece), age_);
  }
  void return_piece(Address address, std::unique_ptr<Piece> piece) {
    CHECK(model_.is(address, piece->size, State::retired));
    CHECK(space().retired_at(address).piece == piece.get());
    model_.set(address, piece->size, State::free);
    pieces_.emplace(address, piece.get());
    note_age(address, piece->size);
    space().return_piece(address, std::move(piece), age_);
  }

  // Moves free pieces to retired addresses, one by one or all at once. `pieces` is sorted by the
  // current addresses of the pieces. `address_for(piece)` returns the address to which a piece
  // moves.
  template <typename Function>
  void return_all(const std::vector<FreePiece>& pieces, Function address_for) {
    if (random_.one_in(2)) {
      std::vector<std::unique_ptr<Piece>> coming;
      for (const FreePiece& each : pieces) coming.push_back(remove(each));
      for (std::unique_ptr<Piece>& piece : coming) {
        const Address address = address_for(piece.get());
        return_piece(address, std::move(piece));
      }
      return;
    }
    std::vector<Return> returns;
    for (const FreePiece& each : pieces) {
      const Address from = each.piece->address;
      const Address to = address_for(each.piece);
      const Bytes size = each.piece->size;
      CHECK(model_.is(from, size, State::free));
      CHECK(model_.is(to, size, State::retired));
      returns.push_back({each, to});
      model_.set(from, size, State::retired);
      model_.set(to, size, State::free);
      pieces_.erase(from);
      pieces_.emplace(to, each.piece);
    }
    ++age_;
    for (const Return& each : returns) mark_age(each.to, each.free.piece->size);
    std::vector<std::uint64_t> freed_at;
    std::vector<Address> left;
    for (const Return& each : returns) {
      left.push_back(each.free.piece->address);
      freed_at.push_back(space().block_at(left.back())->age_base);
    }
    space().return_pieces(returns, age_);
    for (std::size_t i = 0; i < returns.size(); ++i) {
      const Piece* const piece = returns[i].free.piece;
      CHECK_EQUAL(piece->address, returns[i].to);
      CHECK(space().retired_at(left[i]).piece == piece);
      CHECK_EQUAL(space().retired_at(left[i]).age_base, freed_at[i]);
      CHECK(space().piece_at(returns[i].to) == piece);
    }
  }

  void add_piece() {
    // Maps a piece that was removed before, or a new piece.
    const bool is_old = !removed_.empty() && !random_.one_in(4);
    const Bytes size = is_old ? removed_.back()->size : random_.between(1, 4) * kGranule;
    const auto hole = space().hole_for(size);
    std::optional<AddressRange> lowest;
    for (const AddressRange& each : model_.stretches(State::hole)) {
      if (each.size >= size && !lowest) lowest = each;
    }
    CHECK_EQUAL(hole.has_value(), lowest.has_value());
    if (!hole || !lowest) return;
    CHECK(hole->address == lowest->address && hole->size == lowest->size);
    const Bytes offset = random_.below((hole->size - size) / kGranule + 1) * kGranule;
    if (!is_old) {
      add(hole->address + offset, size);
      return;
    }
    add(hole->address + offset, std::move(removed_.back()));
    removed_.pop_back();
  }

  // Serves a request of a random size by mapping new pieces into holes, as the allocator does if no
  // free block can serve it. Does nothing if a free range is large enough for the request.
  void fill_place() {
    const Bytes size = random_size();
    for (const AddressRange& free : model_.stretches(State::free)) {
      if (free.size >= size) return;
    }
    const std::optional<Bytes> least = model_.least_missing(size);
    if (random_.one_in(3)) {
      return_to_place(size, least);
      return;
    }
    const std::optional<Place> place = find_place(space(), size);
    CHECK_EQUAL(place.has_value(), least.has_value());
    if (!place || !least) return;
    CHECK_EQUAL(place->price, *least);
    CHECK(place->returned.empty() && place->cleared.empty());
    fill(*place, size);
  }

  // Takes a block of `size` bytes, if there is a place for it. Makes room in three ways: returns
  // free pieces to retired addresses, unmaps old mappings at other retired addresses, and maps new
  // pieces into holes. Unmaps only old mappings whose `age_base` is at most `idle_age`.
  void return_to_place(Bytes size, std::optional<Bytes> least) {
    std::vector<FreePiece> found = space().free_pieces(age_);
    std::erase_if(found, [&](const FreePiece&) { return random_.one_in(4); });
    std::sort(found.begin(), found.end(), by_address);
    FreePieces free;
    for (const FreePiece& each : found) free.add(each);
    const std::uint64_t idle_age = random_.below(age_ + 1);
    const bool is_found = !random_.one_in(3);
    const std::optional<Place> place =
        is_found ? find_place(space(), size, free, idle_age)
                 : place_at(space(), random_address(), size, free, idle_age);
    CHECK(place.has_value() || !least || !is_found);
    if (!place) return;
    CHECK(!least || place->price <= *least || !is_found);
    std::map<const Piece*, Address> returned;
    for (const Address address : place->returned) {
      const Piece* const piece = space().retired_at(address).piece;
      CHECK(free.has(piece));
      CHECK(piece->address >= place->extent.end() || piece->end() <= place->extent.address);
      returned.emplace(piece, address);
    }
    CHECK_EQUAL(returned.size(), place->returned.size());
    std::erase_if(found, [&](const FreePiece& each) { return !returned.contains(each.piece); });
    returns_to_places_ += found.size();
    return_all(found, [&](const Piece* piece) { return returned.at(piece); });
    for (const Address address : place->cleared) {
      CHECK(space().retired_at(address).age_base <= idle_age);
      clear(address);
    }
    fill(*place, size);
  }

  Address random_address() {
    const AddressRange& range =
        space().reservations()[random_.below(space().reservations().size())];
    return range.address + random_.below(range.size / kCell) * kCell;
  }

  void fill(const Place& where, Bytes size) {
    const Place* const place = &where;
    CHECK_EQUAL(place->extent.size, size);
    for (const Gap& gap : place->gaps) {
      CHECK(model_.is(gap.range.address - gap.room_below,
                      gap.room_below + gap.range.size + gap.room_above, State::hole));
      for (Bytes done = 0; done < gap.range.size;) {
        const Bytes part = random_.between(1, (gap.range.size - done) / kGranule) * kGranule;
        add(gap.range.address + done, part);
        done += part;
      }
    }
    CHECK(model_.is(place->extent.address, size, State::free));
    Block* const block = space().take(size);
    CHECK(block != nullptr);
    if (block != nullptr) lend(block);
  }

  std::unique_ptr<Piece> remove(const FreePiece& free) {
    const AddressRange range{free.piece->address, free.piece->size};
    const auto known = pieces_.find(range.address);
    CHECK(known != pieces_.end() && known->second == free.piece);
    CHECK(model_.is(range.address, range.size, State::free));
    pieces_.erase(range.address);
    const std::uint64_t freed_at = space().block_at(range.address)->age_base;
    std::unique_ptr<Piece> piece = space().remove_piece(free);
    CHECK(piece.get() == free.piece);
    CHECK_EQUAL(space().retired_at(range.address).age_base, freed_at);
    CHECK(space().retired_at(range.address).piece == free.piece);
    model_.set(range.address, range.size, State::retired);
    return piece;
  }

  void remove_pieces() {
    const std::uint64_t age = random_.below(2) == 0 ? age_ : random_.below(age_ + 1);
    std::vector<FreePiece> found = space().free_pieces(age);
    std::sort(found.begin(), found.end(), by_address);
    CHECK_EQUAL(found.size(), expected_pieces(age));
    for (const FreePiece& each : found) {
      if (random_.one_in(2)) removed_.push_back(remove(each));
    }
    // Gives some pieces back to the driver, so that nothing can return to their old addresses.
    while (!removed_.empty() && random_.one_in(8)) {
      std::swap(random_.pick(removed_), removed_.back());
      const std::vector<Block*> old = removed_.back()->old_mappings;
      removed_.pop_back();
      for (const Block* const each : old) CHECK(each->piece == nullptr);
    }
  }

  // Retires one granule of a hole, as the allocator does where the driver refused to unmap memory.
  void retire_hole() {
    const auto hole = space().hole_for(kGranule * random_.between(1, 3));
    if (!hole) return;
    const AddressRange range{hole->address, kGranule};
    CHECK(model_.is(range.address, range.size, State::hole));
    space().retire(range);
    model_.set(range.address, range.size, State::retired);
  }

  // Returns the number of whole pieces in ranges that were freed at the time `age` or earlier.
  [[nodiscard]] std::size_t expected_pieces(std::uint64_t age) {
    std::size_t count = 0;
    for (const AddressRange& free : model_.stretches(State::free)) {
      if (age_of(free) > age) continue;
      for (const auto& [address, piece] : pieces_) {
        if (address >= free.address && piece->end() <= free.end()) ++count;
      }
    }
    return count;
  }

  void clear() {
    std::vector<Address> retired;
    space().for_each_retired([&retired](const Block& each) { retired.push_back(each.address); });
    CHECK_EQUAL(retired.size(), space().retired_count());
    if (!retired.empty()) clear(random_.pick(retired));
  }

  void clear(Address address) {
    model_.set(address, space().retired_at(address).size, State::hole);
    space().clear(address);
  }

  // Maps the pieces of a free block back at the addresses where they were mapped first.
  void return_home() {
    Block* const block = space().free_blocks().last();
    if (block == nullptr) return;
    std::vector<FreePiece> away;
    space().add_pieces_away(block, {block->address, block->size}, away);
    returns_home_ += away.size();
    return_all(away, [](const Piece* piece) { return piece->home; });
  }

  // Notes that a range was freed just now. Free neighbours merge with the range. All cells of
  // the merged range get the new `age_`.
  void note_age(Address address, Bytes size) {
    ++age_;
    mark_age(address, size);
  }
  void mark_age(Address address, Bytes size) {
    for (const AddressRange& free : model_.stretches(State::free)) {
      if (address < free.address || address + size > free.end()) continue;
      for (Address cell = free.address; cell < free.end(); cell += kCell) ages_[cell] = age_;
    }
  }
  [[nodiscard]] std::uint64_t age_of(const AddressRange& range) {
    std::uint64_t youngest = 0;
    for (Address cell = range.address; cell < range.end(); cell += kCell) {
      youngest = std::max(youngest, ages_[cell]);
    }
    return youngest;
  }

  void check() {
    space().check_invariants();
    for (const AddressRange& free : model_.stretches(State::free)) {
      const Block* const block = space().block_at(free.address);
      CHECK(block->address == free.address && block->size == free.size);
    }
    for (std::size_t i = 0; i < model_.count(); i += 5) {
      const Address address = kBase + i * kCell + random_.below(kCell);
      const Block* const block = space().block_at(address);
      const State state = block == nullptr   ? State::none
                          : block->retired   ? State::retired
                          : !block->mapped   ? State::hole
                          : block->allocated ? State::lent
                                             : State::free;
      CHECK(state == model_.at(i));
    }
    CHECK_EQUAL(piece_count(), pieces_.size());
  }

  Random random_;
  SimulatedHost host_{0};
  SimulatedDriver driver_{host_, 1_GiB};
  ReturnedHandles returned_{driver_};
  std::vector<std::unique_ptr<Piece>> removed_;  // pieces that are mapped nowhere for a while
  ConcurrentStatistics statistics_;
  ElasticPool pool_{PoolId{}};
  Arena arena_{7, pool_, statistics_.add_shard()};
  Model model_;
  std::vector<Block*> lent_;
  std::map<Address, const Piece*> pieces_;
  std::map<Address, std::uint64_t> ages_;
  std::uint64_t age_ = 1;
  std::size_t returns_to_places_ = 0;
  std::size_t returns_home_ = 0;
};

}  // namespace

TEST(a_mapped_space_is_what_a_map_of_its_cells_says) {
  std::size_t returns_to_places = 0;
  std::size_t returns_home = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SpaceProgram program(seed);
    for (int i = 0; i < 1500; ++i) program.step();
    program.end();
    returns_to_places += program.returns_to_places();
    returns_home += program.returns_home();
  }
  CHECK(returns_to_places > 30);
  CHECK(returns_home > 60);
}

}  // namespace plimsoll
