#include "state.hpp"

#include <algorithm>

#include "random.hpp"

namespace sublet {
State::State(const Sections& sections, int64_t capacity)
    : p_(sections),
      capacity_(capacity),
      values_(2 * sections.count + sections.blocks.size(), 0),
      loads_(values_.data() + sections.count),
      lows_(loads_ + sections.count),
      at_(sections.blocks.size(), 0),
      members_(sections.members),
      entries_(sections.members.size()),
      position_(sections.members.size()),
      entry_begin_(1, 0),
      unplaced_(sections.count, 0),
      crossing_(sections.count + 1, 0),
      queued_(sections.count, 0) {
    for (int s = 0; s < p_.count; s++)
        for (int m = p_.member_begin[s]; m < p_.member_begin[s + 1]; m++) loads_[s] += p_.member_size[m];
    int entry = 0;  // blocks were entered into their sections in this order
    for (const Block& block : p_.blocks) {
        for (int r = block.run_begin; r < block.run_end; r++)
            for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++) {
                position_[entry] = p_.member_begin[s] + unplaced_[s]++;
                entries_[position_[entry]] = entry;
                entry++;
            }
        entry_begin_.push_back(entry);
    }
    for (const Block& block : p_.blocks)
        for (int s = block.first + 1; s < block.last; s++) crossing_[s]++;
    for (int i = 0; i < static_cast<int>(p_.blocks.size()); i++) add_key(key_of(i), false);
}

bool State::settle() {
    for (int s = 0; s < p_.count; s++) enqueue(s);
    for (int i = 0; i < static_cast<int>(p_.blocks.size()); i++)
        if (!raise(i, std::max<int64_t>(0, p_.blocks[i].pinned))) return refute(p_.blocks[i].first);
    return propagate();
}

void State::undo(const Mark& mark) {
    while (trail_.size() > mark.trail) {
        values_[trail_.back().first] = trail_.back().second;
        trail_.pop_back();
    }
    while (placed_.size() > mark.crossed) {
        const Block& block = p_.blocks[placed_.back()];
        for (int s = block.first + 1; s < block.last; s++) crossing_[s]++;
        for (int r = block.run_begin; r < block.run_end; r++)
            for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++) unplaced_[s]++;
        placed_.pop_back();
    }
    key_ = mark.key;
}

Key State::key_of(int block) const {
    uint64_t z = scramble(static_cast<uint64_t>(lows_[block]) * 0x9e3779b97f4a7c15u +
                          static_cast<uint64_t>(block) * 0xd1342543de82ef95u + 1);
    return {z, scramble(z ^ 0xa0761d6478bd642fu)};
}

void State::add_key(const Key& key, bool remove) {
    for (int half = 0; half < 2; half++) key_[half] += remove ? 0 - key[half] : key[half];
}

bool State::refute(int section) {
    for (int s : queue_) queued_[s] = 0;
    queue_.clear();
    queued_[section] = 0;
    culprit_ = section;
    return false;
}

bool State::propagate() {
    while (!queue_.empty()) {
        // The section with the least slack first: it refutes soonest, and gets the blame.
        auto next = std::min_element(queue_.begin(), queue_.end(), [&](int a, int b) { return slack(a) < slack(b); });
        int s = *next;
        *next = queue_.back();
        queue_.pop_back();
        queued_[s] = 0;
        if (!open(s)) continue;
        int64_t lowest = kPlaced;
        queued_[s] = 1;  // what it raises itself is nothing new to it
        for (const int* m = begin_of(s); m < end_of(s); m++) {
            if (lows_[*m] < floor(s) && !raise(*m, floor(s))) return refute(s);
            lowest = std::min(lowest, lows_[*m]);
        }
        queued_[s] = 0;
        if (lowest > floor(s)) set(values_[s], lowest);
        if (slack(s) < 0) return refute(s);
    }
    return true;
}

bool State::raise(int i, int64_t to) {
    const Block& block = p_.blocks[i];
    if (block.alignment > 1) {
        int64_t over = to % block.alignment;
        if (over) to += std::min(block.alignment - over, kMaxBytes);
    }
    if (to > capacity_ - block.size || (block.pinned >= 0 && to > block.pinned)) return false;
    int64_t old = lows_[i];
    if (to <= old) return true;
    add_key(key_of(i), true);
    set(lows_[i], to);
    add_key(key_of(i), false);
    for (int r = block.run_begin; r < block.run_end; r++)
        for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++)
            if (floor(s) >= old) enqueue(s);  // it was among the lowest there, so the floor may rise
    return true;
}

void State::remove(int s, int entry) {
    int at = position_[entry], last = p_.member_begin[s] + --unplaced_[s];
    std::swap(members_[at], members_[last]);
    std::swap(entries_[at], entries_[last]);
    position_[entries_[at]] = at;
    position_[entry] = last;
}

bool State::place(int i) {
    const Block& block = p_.blocks[i];
    int64_t offset = lows_[i];
    add_key(key_of(i), true);
    at_[i] = offset;
    set(lows_[i], kPlaced);
    placed_.push_back(i);
    for (int s = block.first + 1; s < block.last; s++) crossing_[s]--;
    int entry = entry_begin_[i];
    for (int r = block.run_begin; r < block.run_end; r++)
        for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++) {
            set(values_[s], std::max(floor(s), offset + p_.runs[r].size));
            set(loads_[s], loads_[s] - p_.runs[r].size);
            remove(s, entry++);
            enqueue(s);
        }
    if (!p_.covered)
        for (int k = block.near_begin; k < block.near_end; k++) {
            const Neighbour& near = p_.near[k];
            if (unplaced(near.block) && lows_[near.block] < offset + near.mine &&
                !raise(near.block, offset + near.mine))
                return refute(tightest_section(near.block));
        }
    return propagate();
}

// A block that is not at its low can be pushed down until it lies on something, which is no lower than the
// lowest top of its unplaced neighbours. Its twins may change places with it, so none of them is there either.
bool State::postpone(int i) {
    int64_t support = kPlaced, was = lows_[i];
    const Block& block = p_.blocks[i];
    for (int k = block.near_begin; k < block.near_end; k++) {
        const Neighbour& near = p_.near[k];
        if (unplaced(near.block)) support = std::min(support, lows_[near.block] + near.theirs);
    }
    if (support == kPlaced || block.pinned >= 0) return refute(tightest_section(i));
    for (int j = i; j >= 0; j = p_.blocks[j].twin)
        if (unplaced(j) && lows_[j] == was && !raise(j, support)) return refute(tightest_section(i));
    return propagate();
}

bool State::is_free(int i) const {
    for (int k = p_.blocks[i].near_begin; k < p_.blocks[i].near_end; k++) {
        const Neighbour& near = p_.near[k];
        if (unplaced(near.block) && lows_[near.block] < lows_[i] + near.mine) return false;
    }
    return true;
}

int State::undercut(int i) const {
    for (int k = p_.blocks[i].near_begin; k < p_.blocks[i].near_end; k++) {
        const Neighbour& near = p_.near[k];
        if (unplaced(near.block) && lows_[near.block] + near.theirs <= lows_[i]) return near.block;
    }
    return -1;
}

int State::tightest_section(int i) const {
    const Block& block = p_.blocks[i];
    int best = block.first;
    for (int r = block.run_begin; r < block.run_end; r++)
        for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++)
            if (slack(s) < slack(best)) best = s;
    return best;
}

}  // namespace sublet
