#include <algorithm>

#include "search.hpp"

namespace sublet::recompute {

namespace {

struct Stretch {
    int begin, end;  // nodes
};

}  // namespace

Clones in_segments(const Level& level, int count) {
    Clones none(level.nodes()), clones(level.nodes());
    Timeline plain;
    plain.work_out(level, none);
    const int peak =
        static_cast<int>(std::max_element(plain.live.begin(), plain.live.end()) - plain.live.begin());
    Rows readers(level.nbytes.size());
    for (int i = 0; i < level.nodes(); i++)
        if (!level.offloads(i))
            for (int b : level.read[i]) readers[b].push_back(i);
    const auto late = [&](int b) {  // the first reader after the peak, -1 for none
        const auto found = std::upper_bound(readers[b].begin(), readers[b].end(), peak);
        return found == readers[b].end() || level.kept[b] ? -1 : *found;
    };
    std::vector<int64_t> bytes(peak + 1, 0);
    int64_t total = 0;
    for (int j = 0; j <= peak; j++) {
        for (int b : level.born[j])
            if (late(b) >= 0) bytes[j] += level.nbytes[b];
        total += bytes[j];
    }
    std::vector<Stretch> stretches;
    int64_t sum = 0;
    int begin = 0;
    for (int j = 0; j <= peak; j++) {
        sum += bytes[j];
        if (sum * count >= total * static_cast<int64_t>(stretches.size() + 1)) {
            stretches.push_back({begin, j + 1});
            begin = j + 1;
        }
    }
    for (size_t i = 0; i + 1 < stretches.size(); i++) {
        const Stretch stretch = stretches[i];
        std::vector<int> dropped;
        int first = level.nodes();
        for (int j = stretch.begin; j < stretch.end; j++)
            for (int b : level.born[j]) {
                const int reader = std::min(late(b), level.latest[j]);
                const bool outside = std::any_of(readers[b].begin(), readers[b].end(),
                                                 [&](int r) { return r >= stretch.end && r <= peak; });
                if (reader <= peak || outside) continue;
                dropped.push_back(j);
                first = std::min(first, reader);
            }
        std::vector<int>& at = clones[std::min(first, level.nodes() - 1)];
        while (!dropped.empty()) {
            const int j = dropped.back();
            dropped.pop_back();
            if (std::find(at.begin(), at.end(), j) != at.end() || first > level.latest[j]) continue;
            at.push_back(j);
            for (int b : level.cloned[j]) {
                const int maker = level.maker[b];
                const bool inside = maker >= stretch.begin && maker < stretch.end;
                if (inside && late(b) < 0 && first <= level.latest[maker]) dropped.push_back(maker);
            }
        }
        std::sort(at.begin(), at.end());
    }
    return clones;
}

}  // namespace sublet::recompute
