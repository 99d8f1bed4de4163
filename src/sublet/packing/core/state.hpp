// Where a search is: what is placed, how low everything else can still go, and the consequences of both.
//
// For each section: a floor, below which nothing unplaced can lie, and the load, the bytes still to place.
// For each unplaced block: the lowest offset it can have. The two raise each other until nothing changes;
// floor + load beyond the capacity refutes. Blocks are placed upwards: what is placed lies below everything
// unplaced that it conflicts with, so the lows of the unplaced blocks say all that matters for the rest.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "sections.hpp"

namespace sublet {

using Key = std::array<uint64_t, 2>;

class State {
  public:
    // Invariant of all sums here: capacity <= 2^62, and a block fits under the capacity at its low, so no
    // offset, top or load exceeds 2^62. `settle` establishes it; sections heavier than the capacity are refused.
    State(const Sections& sections, int64_t capacity);

    struct Mark {
        size_t trail, crossed;
        Key key;
    };
    Mark mark() const { return {trail_.size(), placed_.size(), key_}; }
    void undo(const Mark& mark);

    bool settle();             // pins and floors of the empty state; false: no packing exists
    bool place(int block);     // at its low, below all it conflicts with; false: that leaves no room for the rest
    bool postpone(int block);  // not at its low; false: then nowhere

    bool unplaced(int block) const { return lows_[block] != kPlaced; }
    int64_t low(int block) const { return lows_[block]; }
    int64_t floor(int section) const { return values_[section]; }
    int64_t slack(int section) const { return capacity_ - floor(section) - loads_[section]; }
    int64_t capacity() const { return capacity_; }
    int64_t offset(int block) const { return at_[block]; }
    const std::vector<int>& placed() const { return placed_; }
    const int* begin_of(int section) const {
        return members_.data() + p_.member_begin[section];
    }  // its unplaced blocks
    const int* end_of(int section) const { return begin_of(section) + unplaced_[section]; }
    bool open(int section) const { return loads_[section] > 0; }
    bool severed(int boundary) const { return crossing_[boundary] == 0; }

    bool is_free(int block) const;  // nothing unplaced can use any of the bytes it takes at its low
    int undercut(int block) const;  // an unplaced block that could lie entirely below it, or -1
    Key key() const { return key_; }
    Key key_of(int block) const;
    int culprit() const { return culprit_; }  // the section in which the last refutation was found

  private:
    static constexpr int64_t kPlaced = INT64_MAX;
    const Sections& p_;
    int64_t capacity_;
    std::vector<int64_t> values_;  // floors, loads, lows: one array, so that a trail entry is an index and a value
    int64_t *loads_, *lows_;
    std::vector<int64_t> at_;
    // Members of each section, the unplaced ones first. Each block has an entry for each of its sections.
    std::vector<int> members_, entries_, position_, entry_begin_, unplaced_;
    std::vector<int> crossing_;  // unplaced blocks alive on both sides of the boundary before section s
    std::vector<int> placed_;
    std::vector<std::pair<uint32_t, int64_t>> trail_;
    std::vector<int> queue_;
    std::vector<char> queued_;
    Key key_{0, 0};
    int culprit_ = 0;

    void set(int64_t& slot, int64_t value) {
        trail_.emplace_back(static_cast<uint32_t>(&slot - values_.data()), slot);
        slot = value;
    }
    void enqueue(int section) {
        if (!queued_[section]) {
            queued_[section] = 1;
            queue_.push_back(section);
        }
    }
    void remove(int section, int entry);
    bool propagate();
    bool raise(int block, int64_t to);
    bool refute(int section);
    int tightest_section(int block) const;
    void add_key(const Key& key, bool remove);
};

}  // namespace sublet
