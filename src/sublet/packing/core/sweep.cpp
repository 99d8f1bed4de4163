#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "greedy.hpp"

namespace sublet {
namespace {

// The free bytes of an arena without end, as holes that never touch.
class Holes {
  public:
    Holes() { add(0, kMaxBytes); }

    int64_t take(int64_t size, int64_t alignment) {
        for (auto at = by_width_.lower_bound({size, 0}); at != by_width_.end(); ++at) {
            int64_t begin = at->second, end = begin + at->first, over = begin % alignment;
            int64_t start = over ? begin + (alignment - over) : begin;
            if (start > end - size) continue;
            remove(begin, end);
            add(begin, start);
            add(start + size, end);
            return start;
        }
        throw std::overflow_error("sweep: offsets could exceed 2^62");
    }

    void give(int64_t begin, int64_t end) {
        auto after = ends_.lower_bound(begin);
        if (after != ends_.end() && after->first == end) {
            int64_t last = after->second;
            remove(end, last);
            end = last;
        }
        auto before = ends_.lower_bound(begin);
        if (before != ends_.begin() && (--before)->second == begin) {
            int64_t first = before->first;
            remove(first, begin);
            begin = first;
        }
        add(begin, end);
    }

  private:
    std::map<int64_t, int64_t> ends_;                 // begin -> end
    std::set<std::pair<int64_t, int64_t>> by_width_;  // width, begin

    void add(int64_t begin, int64_t end) {
        if (begin == end) return;
        ends_[begin] = end;
        by_width_.insert({end - begin, begin});
    }
    void remove(int64_t begin, int64_t end) {
        ends_.erase(begin);
        by_width_.erase({end - begin, begin});
    }
};

}  // namespace

std::vector<int64_t> sweep(const Problem& problem) {
    if (problem.partial_order || !problem.companions.empty()) throw std::invalid_argument("sweep: lifetimes only");
    std::vector<std::tuple<int64_t, bool, int64_t, int>> events;  // time, begins, -size (large first), item
    for (int i = 0; i < static_cast<int>(problem.items.size()); i++) {
        const Item& item = problem.items[i];
        if (item.pinned >= 0) throw std::invalid_argument("sweep: no pinned offsets");
        if (item.size == 0 || item.pieces.empty()) continue;
        events.emplace_back(item.pieces.front().first, true, -item.size, i);
        events.emplace_back(item.pieces.back().second, false, 0, i);
    }
    std::sort(events.begin(), events.end());
    std::vector<int64_t> offsets(problem.items.size(), 0);
    Holes holes;
    for (auto [time, begins, negative_size, i] : events) {
        const Item& item = problem.items[i];
        if (begins)
            offsets[i] = holes.take(item.size, item.alignment);
        else
            holes.give(offsets[i], offsets[i] + item.size);
    }
    return offsets;
}

int64_t count_overlaps(const Problem& problem) {
    std::vector<int64_t> begins, ends;
    for (const Item& item : problem.items)
        for (auto [begin, end] : item.pieces) {
            begins.push_back(begin);
            ends.push_back(end);
        }
    std::sort(begins.begin(), begins.end());
    std::sort(ends.begin(), ends.end());
    int64_t overlaps = 0;
    for (size_t k = 0, ended = 0; k < begins.size(); k++) {  // alive when the k-th begins
        while (ended < ends.size() && ends[ended] <= begins[k]) ended++;
        overlaps += static_cast<int64_t>(k - ended);
    }
    return overlaps;
}

}  // namespace sublet
