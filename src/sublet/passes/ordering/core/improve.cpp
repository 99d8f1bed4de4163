#include "improve.hpp"

#include <algorithm>

#include "cut.hpp"

namespace sublet::ordering {

namespace {

constexpr int64_t most_arcs = 40'000'000;  // total size of all networks cut for bounds, in nodes and atoms
constexpr int most_divided = 20'000;       // maximum nodes to compute `divides`, quadratic in memory
constexpr int narrowest = 12;              // nodes of the first window around the peak

class Improvement {
public:
    Improvement(const Problem& problem, std::vector<int> order, int64_t effort, const std::function<bool()>& stop)
        : p(problem), effort(effort), stop(stop) {
        found.order = std::move(order);
        found.bound = at_start(p);
        found.bound_node = -1;
        found.searched = false;
        found.steps = 0;
    }

    Found run() {
        look();
        divide();
        cut_where_highest();
        while (found.peak > found.bound && found.steps < effort && !stop() && lower()) cut_where_highest();
        if (found.peak > found.bound && !stop()) refute();
        return found;
    }

private:
    const Problem& p;
    const int64_t effort;
    const std::function<bool()>& stop;
    Found found;
    std::vector<int64_t> alive;
    std::vector<char> divides;  // by position: True if the node has the same position in every order
    std::vector<char> cut_at = std::vector<char>(p.nodes(), 0);
    int64_t arcs = 0;

    void look() {
        alive = curve(p, found.order);
        found.peak = at_start(p);
        for (int64_t bytes : alive) found.peak = std::max(found.peak, bytes);
    }

    // Finds the nodes comparable with all other nodes: their positions are the same in every order.
    void divide() {
        const int n = p.nodes();
        divides.assign(n, 0);
        if (n > most_divided) return;
        std::vector<int> related(n, 1);
        const size_t words = (n + 63) / 64;
        std::vector<uint64_t> above(n * words, 0);
        for (int j : found.order) {
            uint64_t* mine = &above[j * words];
            for (int k : p.before[j]) {
                for (size_t i = 0; i < words; i++) mine[i] |= above[k * words + i];
                mine[k >> 6] |= uint64_t{1} << (k & 63);
            }
            for (size_t i = 0; i < words; i++)
                for (uint64_t left = mine[i]; left; left &= left - 1) {
                    related[j]++;
                    related[64 * i + __builtin_ctzll(left)]++;
                }
        }
        for (int i = 0; i < n; i++) divides[i] = related[found.order[i]] == n;
    }

    // Raises the bound by cuts at the nodes with the most live bytes; cuts at further nodes cannot be higher.
    void cut_where_highest() {
        std::vector<std::pair<int64_t, int>> highest;
        for (size_t i = 0; i < alive.size(); i++)
            if (alive[i] > found.bound && !cut_at[found.order[i]]) highest.emplace_back(-alive[i], found.order[i]);
        std::sort(highest.begin(), highest.end());
        for (const auto& [bytes, j] : highest) {
            if (-bytes <= found.bound || arcs > most_arcs || stop()) break;
            arcs += p.nodes() + p.atoms();
            cut_at[j] = 1;
            const int64_t least = least_during(p, j);
            if (least > found.bound) found.bound = least, found.bound_node = j, found.searched = false;
        }
    }

    // Positions [begin, end) around `at` between nodes of fixed position.
    std::pair<int, int> segment(int at) const {
        int begin = at, end = at;
        while (begin > 0 && !divides[begin - 1]) begin--;
        while (end < p.nodes() && !divides[end]) end++;
        return {begin, std::min(end + 1, p.nodes())};
    }

    // Searches an order of the nodes in a window within the budget; adopts the order if found.
    Outcome take(int begin, int end, int64_t budget, int64_t most) {
        const Problem part = window(p, found.order, begin, end);
        const Answer answer = within(part, budget, found.steps, std::min(effort, found.steps + most), stop);
        if (answer.outcome == Outcome::found) {
            const std::vector<int> old(found.order.begin() + begin, found.order.begin() + end);
            for (size_t i = 0; i < answer.order.size(); i++) found.order[begin + i] = old[answer.order[i]];
            look();
        }
        return answer.outcome;
    }

    // Lowers the peak by reordering a growing window around the peak, up to the segment between fixed positions.
    bool lower() {
        const int at = static_cast<int>(std::max_element(alive.begin(), alive.end()) - alive.begin());
        const auto [first, last] = segment(at);
        for (int width = narrowest;; width *= 2) {
            const int begin = std::max(first, at - width / 2), end = std::min(last, at + width - width / 2);
            const bool whole = begin == first && end == last;
            const int64_t most = whole ? effort : effort / 64;
            const int64_t half = found.bound + (found.peak - found.bound) / 2;
            if (half < found.peak - 1 && take(begin, end, half, effort / 64) == Outcome::found) return true;
            const Outcome outcome = take(begin, end, found.peak - 1, most);
            if (outcome == Outcome::found) return true;
            if (whole) {
                if (outcome == Outcome::none) found.bound = found.peak, found.bound_node = -1, found.searched = true;
                return false;
            }
            if (stop() || found.steps >= effort || end - begin > most_nodes) return false;
        }
    }

    // Raises the bound by binary search over refutable budgets below the peak.
    void refute() {
        const int at = static_cast<int>(std::max_element(alive.begin(), alive.end()) - alive.begin());
        const auto [first, last] = segment(at);
        if (last - first > most_nodes) return;
        const Problem part = window(p, found.order, first, last);
        int64_t high = found.peak - 1;
        for (int64_t spent = 0; found.bound <= high && spent < effort / 2 && !stop();) {
            const int64_t middle = found.bound + (high - found.bound) / 2;
            int64_t steps = 0;
            const Outcome outcome = within(part, middle, steps, effort / 16, stop).outcome;
            spent += steps + 1;
            if (outcome == Outcome::none) found.bound = middle + 1, found.bound_node = -1, found.searched = true;
            else high = middle - 1;
        }
    }
};

}  // namespace

Found improve(const Problem& problem, std::vector<int> order, int64_t effort, const std::function<bool()>& stop) {
    return Improvement(problem, std::move(order), effort, stop).run();
}

}  // namespace sublet::ordering
