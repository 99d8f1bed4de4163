#include "greedy.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "placing.hpp"
#include "random.hpp"

namespace sublet {
namespace {

// One sixteenth of the peak more alive at the worst time of its life counts as much as twice the size.
constexpr double kTight = 16;

// Placed pieces of lifetimes, found by overlap. Time is counted in begins (so that every stretch is about equally
// busy); a piece of length in (2^(l-1), 2^l] is stored once, at level l, in the bin its begin falls into. All that
// can overlap [a, b) is then in few bins of each level, and at least a third of what is looked at does overlap.
class Timeline {
  public:
    struct Piece {
        int32_t begin, end;
    };

    explicit Timeline(const std::vector<Piece>& pieces) {
        int32_t length = 1;
        for (const Piece& p : pieces) length = std::max(length, p.end);
        levels_ = kFinest + 1;
        while ((int64_t{1} << (levels_ - 1)) < length) levels_++;
        for (int l = kFinest; l < levels_; l++) {
            level_begin_.push_back(bins_);
            bins_ += (length >> l) + 1;
        }
        filled_.assign(bins_ + 1, 0);
        for (const Piece& p : pieces) filled_[bin_of(p) + 1]++;
        std::partial_sum(filled_.begin(), filled_.end(), filled_.begin());
        first_ = filled_;
        begin_.resize(pieces.size());
        end_.resize(pieces.size());
        bytes_.resize(pieces.size());
        used_.assign(levels_, 0);
    }

    void add(const Piece& p, const Extent& bytes) {
        int64_t at = filled_[bin_of(p)]++;
        begin_[at] = p.begin;
        end_[at] = p.end;
        bytes_[at] = bytes;
        used_[level_of(p)]++;
    }

    void collect(const Piece& p, std::vector<Extent>& into) const {
        for (int l = kFinest; l < levels_; l++) {
            if (!used_[l]) continue;
            int64_t width = int64_t{1} << l;
            int64_t from = std::max<int64_t>(0, p.begin - width) >> l, to = (p.end - 1) >> l;
            const int64_t base = level_begin_[l - kFinest];
            for (int64_t bin = base + from; bin <= base + to; bin++)
                for (int64_t at = first_[bin]; at < filled_[bin]; at++)
                    if (begin_[at] < p.end && end_[at] > p.begin) into.push_back(bytes_[at]);
        }
    }

  private:
    static constexpr int kFinest = 4;
    int levels_ = 0;
    int64_t bins_ = 0;
    std::vector<int64_t> level_begin_, first_, filled_, used_;
    std::vector<int32_t> begin_, end_;
    std::vector<Extent> bytes_;

    static int level_of(const Piece& p) {
        int l = kFinest;
        while ((1 << l) < p.end - p.begin) l++;
        return l;
    }
    int64_t bin_of(const Piece& p) const {
        int l = level_of(p);
        return level_begin_[l - kFinest] + (p.begin >> l);
    }
};

// Items that share an offset.
struct Cluster {
    int64_t size = 0, alignment = 1, pinned = -1;
    int first_item = -1, piece_begin = 0, piece_end = 0;
};

struct Clusters {
    std::vector<Cluster> all;
    std::vector<int> of_item;
    std::vector<Timeline::Piece> pieces;  // of each cluster, one after another
    std::vector<int64_t> piece_size, piece_shift;
};

// Nothing goes higher than on top of all others and of the highest pin, each rounded up to its alignment.
void check_range(const std::vector<Cluster>& clusters) {
    __int128 highest = 0;
    int64_t pin = 0;
    for (const Cluster& c : clusters) {
        highest += static_cast<__int128>(c.size) + c.alignment;
        pin = std::max(pin, c.pinned);
    }
    if (highest + pin > kMaxBytes) throw std::overflow_error("greedy: offsets could exceed 2^62");
}

Clusters cluster(const Problem& problem) {
    std::vector<int64_t> begins;
    for (const Item& item : problem.items)
        if (item.size > 0)
            for (auto [begin, end] : item.pieces) begins.push_back(begin);
    std::sort(begins.begin(), begins.end());
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    auto rank = [&](int64_t time) {
        return static_cast<int32_t>(std::lower_bound(begins.begin(), begins.end(), time) - begins.begin());
    };
    Clusters out;
    std::vector<int> leader = leaders_of(problem), members(problem.items.size());
    std::iota(members.begin(), members.end(), 0);
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return leader[a] < leader[b]; });
    out.of_item.resize(problem.items.size());
    for (int i : members) {
        if (leader[i] == i) {
            out.all.emplace_back();
            out.all.back().first_item = i;
            out.all.back().piece_begin = static_cast<int>(out.pieces.size());
        }
        const Item& item = problem.items[i];
        Cluster& c = out.all.back();
        out.of_item[i] = static_cast<int>(out.all.size()) - 1;
        if (item.size > 0) c.size = std::max(c.size, item.shift + item.size);
        __int128 common = static_cast<__int128>(c.alignment) / std::gcd(c.alignment, item.alignment) * item.alignment;
        c.alignment = static_cast<int64_t>(std::min<__int128>(common, kMaxBytes));
        if (item.pinned >= 0) c.pinned = item.pinned;
        if (item.size > 0)
            for (auto [begin, end] : item.pieces) {
                out.pieces.push_back({rank(begin), rank(end)});
                out.piece_size.push_back(item.size);
                out.piece_shift.push_back(item.shift);
            }
        c.piece_end = static_cast<int>(out.pieces.size());
    }
    check_range(out.all);
    return out;
}

// For each cluster, the most bytes alive at any time during its life, as a share of the peak.
std::vector<double> tightness(const Clusters& clusters) {
    size_t length = 1;
    for (const Timeline::Piece& p : clusters.pieces) length = std::max<size_t>(length, p.end);
    std::vector<int64_t> tree(2 * length, 0);  // a tree of maxima over the loads, which are its leaves
    for (size_t p = 0; p < clusters.pieces.size(); p++) {
        tree[length + clusters.pieces[p].begin] += clusters.piece_size[p];
        if (clusters.pieces[p].end < static_cast<int32_t>(length))
            tree[length + clusters.pieces[p].end] -= clusters.piece_size[p];
    }
    std::partial_sum(tree.begin() + length, tree.end(), tree.begin() + length);
    for (size_t k = length; k-- > 1;) tree[k] = std::max(tree[2 * k], tree[2 * k + 1]);
    double peak = static_cast<double>(std::max<int64_t>(1, length > 1 ? tree[1] : tree[length]));
    std::vector<double> out(clusters.all.size(), 0);
    for (size_t c = 0; c < clusters.all.size(); c++)
        for (int p = clusters.all[c].piece_begin; p < clusters.all[c].piece_end; p++) {
            int64_t most = 0;
            for (size_t a = clusters.pieces[p].begin + length, b = clusters.pieces[p].end + length; a < b;
                 a /= 2, b /= 2) {
                if (a & 1) most = std::max(most, tree[a++]);
                if (b & 1) most = std::max(most, tree[--b]);
            }
            out[c] = std::max(out[c], static_cast<double>(most) / peak);
        }
    return out;
}

std::vector<int64_t> place_all(const Problem& problem, const Clusters& clusters, const std::vector<int>& order,
                               Hole hole) {
    Timeline timeline(clusters.pieces);
    std::vector<int64_t> offset(clusters.all.size(), 0);
    std::vector<char> done(clusters.all.size(), 0);
    std::vector<Extent> taken;
    auto put = [&](int k, int64_t at) {
        const Cluster& c = clusters.all[k];
        offset[k] = at;
        done[k] = 1;
        for (int p = c.piece_begin; p < c.piece_end; p++) {
            const int64_t begin = at + clusters.piece_shift[p];
            timeline.add(clusters.pieces[p], {begin, begin + clusters.piece_size[p]});
        }
    };
    for (int k = 0; k < static_cast<int>(clusters.all.size()); k++)
        if (clusters.all[k].pinned >= 0) put(k, clusters.all[k].pinned);
    for (int k : order) {
        if (done[k]) continue;
        const Cluster& c = clusters.all[k];
        taken.clear();
        for (int p = c.piece_begin; p < c.piece_end; p++) {
            size_t k = taken.size();
            timeline.collect(clusters.pieces[p], taken);
            for (; k < taken.size(); k++)
                taken[k] = seen_from(taken[k], clusters.piece_shift[p], clusters.piece_size[p], c.size);
        }
        put(k, c.size ? find_hole(taken, c.size, c.alignment, hole) : 0);
    }
    std::vector<int64_t> offsets(problem.items.size());
    for (size_t i = 0; i < offsets.size(); i++) offsets[i] = offset[clusters.of_item[i]] + problem.items[i].shift;
    return offsets;
}

}  // namespace

std::vector<int64_t> greedy_by_tightness(const Problem& problem) {
    Clusters clusters = cluster(problem);
    const std::vector<double> tight = tightness(clusters);
    std::vector<std::tuple<double, int, int>> order;
    for (int k = 0; k < static_cast<int>(clusters.all.size()); k++) {
        const Cluster& c = clusters.all[k];
        const int birth = c.piece_end > c.piece_begin ? clusters.pieces[c.piece_begin].begin : 0;
        order.emplace_back(-std::floor(log2_of(c.size) + kTight * tight[k]), birth, k);
    }
    std::sort(order.begin(), order.end());
    std::vector<int> clusters_in_order;
    for (auto [weight, birth, k] : order) clusters_in_order.push_back(k);
    return place_all(problem, clusters, clusters_in_order, Hole::lowest);
}

std::vector<int64_t> greedy_in_order(const Problem& problem, const std::vector<int>& order, Hole hole) {
    if (problem.partial_order) return place_among_conflicts(problem, order, hole);
    Clusters clusters = cluster(problem);
    std::vector<int> by_cluster;
    for (int item : order) by_cluster.push_back(clusters.of_item[item]);
    return place_all(problem, clusters, by_cluster, hole);
}

int64_t arena_of(const Problem& problem, const std::vector<int64_t>& offsets) {
    int64_t arena = 0;
    for (size_t i = 0; i < offsets.size(); i++)
        if (problem.items[i].size) arena = std::max(arena, offsets[i] + problem.items[i].size);
    return arena;
}

}  // namespace sublet
