#include "search.hpp"

#include <algorithm>

#include "random.hpp"
#include "state.hpp"

namespace sublet {
namespace {

// States proved hopeless, by the lows of their unplaced blocks: that is all their future depends on. It holds
// for every order of branching, so it is kept over restarts. 128 bits, so that a collision is out of the question.
class FailedStates {
  public:
    FailedStates() : table_(size_t{1} << 12, Key{0, 0}) {}
    bool has(const Key& key) const { return table_[key[0] & (table_.size() - 1)] == key; }
    void add(const Key& key) {
        if (++added_ > table_.size() / 2 && table_.size() < (size_t{1} << 20)) grow();
        table_[key[0] & (table_.size() - 1)] = key;
    }

  private:
    std::vector<Key> table_;
    size_t added_ = 0;
    void grow() {
        std::vector<Key> old(table_.size() * 4, Key{0, 0});
        old.swap(table_);
        for (const Key& key : old)
            if (key != Key{0, 0}) table_[key[0] & (table_.size() - 1)] = key;
    }
};

int64_t luby(int64_t i) {  // 1 1 2 1 1 2 4 ...
    int64_t power = 1;
    while (power - 1 < i) power *= 2;
    while (power - 1 != i) {
        power /= 2;
        if (i > power - 1) i -= power - 1;
    }
    return power / 2;
}

constexpr int64_t kRestartSteps = 1000;  // times Luby's sequence
constexpr size_t kAskAfter = 1 << 15;    // steps times blocks, as a step costs more the more blocks there are
constexpr double kFurthest = 0.7;        // share of restarts that follow the part of a packing that got furthest
constexpr double kWhole = 0.5;           // share of restarts that follow a packing of a larger capacity
constexpr double kBlameGrowth = 1.0005;  // later failures count more
constexpr double kSmoothing = 64;        // no slack is twice as hard as 1/64 of the capacity

// What one restart prefers in a block: its bytes, its life (both as logarithms), sections where searches failed,
// sections without slack, a fit between walls (the sides of the valley), a top flush with one, chance, the offset it
// had last.
struct Taste {
    double size = 1, length = 1, weight = 4, tight = 8, walls = 1, flush = 1, noise = 0, again = 0;
    bool hardest_first = true;  // begin where it is hardest, not where it is lowest
};

class Searcher {
  public:
    Searcher(const Sections& sections, int64_t capacity, uint64_t seed, int64_t max_steps,
             const ShouldStop& should_stop, Experience& experience)
        : p_(sections),
          state_(sections, capacity),
          random_(seed),
          max_steps_(max_steps),
          should_stop_(should_stop),
          seen_(experience),
          score_(sections.blocks.size()),
          first_block_(sections.count + 1) {
        int block = 0;
        for (int s = 0; s <= p_.count; s++) {
            while (block < static_cast<int>(p_.blocks.size()) && p_.blocks[block].first < s) block++;
            first_block_[s] = block;
        }
    }

    Verdict run() {
        if (!state_.settle()) return Verdict::infeasible;
        std::vector<Part> parts;
        split({0, p_.count}, parts);
        for (const Part& part : parts) {
            Verdict verdict = restart_until_done(part);
            if (verdict != Verdict::feasible) return verdict;
        }
        return Verdict::feasible;
    }
    int64_t steps() const { return steps_; }
    int64_t offset(int block) const { return state_.offset(block); }

  private:
    // Sections [begin, end) that share no unplaced block with the rest.
    struct Part {
        int begin, end;
    };
    // A choice in a part: `block` goes to its low, or not.
    struct Frame {
        int parent;
        Part part;
        Key at_entry, now;
        State::Mark before;
        int block;
        bool is_sure;                               // if the block cannot be at its low, nothing helps
        size_t parts_begin, parts_next, parts_end;  // what its placement leaves, in parts_
    };
    enum class Outcome { solved, refuted, out_of_steps };

    const Sections& p_;
    State state_;
    Random random_;
    int64_t max_steps_;
    const ShouldStop& should_stop_;
    FailedStates failed_;
    Experience& seen_;
    std::vector<double> score_;
    const std::vector<int64_t>* guide_ = nullptr;  // offsets that this restart prefers
    size_t deepest_ = 0;                           // most blocks placed at a time
    std::vector<int> first_block_;                 // of those that begin in section s or later
    std::vector<Frame> frames_;
    std::vector<Part> parts_;
    Taste taste_;
    int64_t steps_ = 0, budget_ = 0;
    size_t not_asked_ = 0;  // steps times blocks since `should_stop` was asked
    bool stopped_ = false;

    Verdict restart_until_done(const Part& part) {
        State::Mark begin = state_.mark();
        for (int64_t restart = 0;; restart++) {
            choose_taste(restart);
            budget_ = steps_ + luby(restart + 1) * kRestartSteps;
            Outcome outcome = explore(part);
            if (outcome == Outcome::solved) return Verdict::feasible;
            if (outcome == Outcome::refuted) return Verdict::infeasible;
            state_.undo(begin);
            if (stopped_ || steps_ >= max_steps_) return Verdict::unknown;
        }
    }

    void choose_taste(int64_t restart) {
        Taste t;
        if (restart > 0) {  // ranges found on rectangles cut from a full strip; none of them matters much
            t.size = 2 * random_.unit();
            t.length = 2 * random_.unit();
            t.weight = 16 * random_.unit();
            t.tight = 32 * random_.unit();
            t.walls = 4 * random_.unit();
            t.flush = 4 * random_.unit();
            t.noise = 4 * random_.unit();
            t.again = 6 * random_.unit();
            t.hardest_first = random_.below(4) != 0;
        }
        taste_ = t;
        guide_ = &seen_.last;
        if (restart > 0 && random_.unit() < kFurthest) guide_ = &seen_.furthest;
        if (!seen_.whole.empty() && random_.unit() < kWhole) guide_ = &seen_.whole;
        double top = *std::max_element(seen_.weight.begin(), seen_.weight.end());
        for (size_t i = 0; i < score_.size(); i++) {
            const Block& block = p_.blocks[i];
            double heaviest = 0;
            for (int r = block.run_begin; r < block.run_end; r++)
                for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++) heaviest = std::max(heaviest, seen_.weight[s]);
            score_[i] = t.size * log2_of(block.size) + t.length * log2_of(block.lived) + t.weight * heaviest / top +
                        t.noise * random_.unit();
        }
        // Twins must score alike: the first of them is to be chosen, since postponing it postpones the later ones.
        for (size_t i = 0; i < score_.size(); i++)
            if (p_.blocks[i].twin >= 0) score_[p_.blocks[i].twin] = score_[i];
    }

    void blame(int section) {
        seen_.weight[section] += seen_.bump;
        seen_.bump *= kBlameGrowth;
        if (seen_.bump < 1e100) return;
        for (double& w : seen_.weight) w /= seen_.bump;
        seen_.bump = 1;
    }

    double hardness(int s) const {
        return seen_.weight[s] /
               (static_cast<double>(state_.slack(s)) + static_cast<double>(state_.capacity()) / kSmoothing);
    }

    void split(const Part& part, std::vector<Part>& into) const {
        for (int s = part.begin; s < part.end;) {
            int begin = s++;
            while (s < part.end && !state_.severed(s)) s++;
            bool open = false;
            for (int k = begin; k < s && !open; k++) open = state_.open(k);
            if (open) into.push_back({begin, s});
        }
    }

    Key key_of(const Part& part) const {
        Key key{0, 0};
        for (int i = first_block_[part.begin]; i < first_block_[part.end]; i++)
            if (state_.unplaced(i)) {
                Key add = state_.key_of(i);
                key[0] += add[0];
                key[1] += add[1];
            }
        return key;
    }

    // The hardest section (or the lowest), then downhill to a valley: sections at one level with nothing lower
    // beside them under any block that could go there.
    int find_valley(const Part& part) const {
        int best = -1;
        double hardest = 0;
        for (int s = part.begin; s < part.end; s++) {
            if (!state_.open(s)) continue;
            if (taste_.hardest_first) {
                double hard = hardness(s);
                if (best < 0 || hard > hardest) {
                    best = s;
                    hardest = hard;
                }
            } else if (best < 0 || state_.floor(s) < state_.floor(best)) {
                best = s;
            }
        }
        for (int lower = best; lower >= 0;) {
            best = lower;
            lower = lower_beside(best);
        }
        return best;
    }
    int lower_beside(int valley) const {
        for (const int* m = state_.begin_of(valley); m < state_.end_of(valley); m++) {
            int i = *m;
            if (state_.low(i) != state_.floor(valley)) continue;
            const Block& block = p_.blocks[i];
            for (int r = block.run_begin; r < block.run_end; r++)
                for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++)
                    if (state_.floor(s) < state_.floor(valley)) return s;
        }
        return -1;
    }

    int choose_block(const Part& part) const {
        int valley = find_valley(part), best = -1;
        int64_t level = state_.floor(valley);
        double best_score = 0;
        for (const int* m = state_.begin_of(valley); m < state_.end_of(valley); m++) {
            int i = *m;
            if (state_.low(i) != level) continue;
            double score = score_of(i, level);
            if (best < 0 || score > best_score || (score == best_score && i < best)) {
                best = i;
                best_score = score;
            }
        }
        if (!p_.covered)  // something that shares no section with it may still fit below
            for (int under = best; under >= 0; under = state_.undercut(best)) best = under;
        return best;
    }

    double score_of(int i, int64_t level) const {
        const Block& block = p_.blocks[i];
        int64_t top = level + block.size;
        int64_t left = beside(block.first - 1), right = beside(block.last);
        int64_t slack = INT64_MAX;
        for (int r = block.run_begin; r < block.run_end; r++)
            for (int s = p_.runs[r].begin; s < p_.runs[r].end; s++) slack = std::min(slack, state_.slack(s));
        double score = score_[i];
        score += taste_.walls * ((left > level) + (right > level)) + taste_.flush * ((left == top) + (right == top));
        score -= taste_.tight * (static_cast<double>(slack) / static_cast<double>(state_.capacity()));
        if ((*guide_)[i] == level) score += taste_.again;
        return score;
    }
    int64_t beside(int s) const {
        return s >= 0 && s < p_.count && state_.open(s) ? state_.floor(s) : state_.capacity();
    }

    // Depth first over choices; a part is solved when all parts it falls into are. A part that fails goes
    // straight back to the choice that created it, past the solved parts beside it.
    Outcome explore(const Part& root) {
        frames_.clear();
        parts_.clear();
        int current = enter(root, -1, key_of(root));
        if (current < 0) return Outcome::refuted;
        for (;;) {
            bool alive = try_block(current);
            if (exhausted()) return Outcome::out_of_steps;
            // Go on with the next part of this choice; solved choices hand over to their parents.
            int next = -1;
            while (alive && next < 0) {
                Frame& frame = frames_[current];
                if (frame.parts_next == frame.parts_end) {
                    current = frame.parent;
                    if (current < 0) return Outcome::solved;
                    continue;
                }
                Part part = parts_[frame.parts_next++];
                bool whole = part.begin == frame.part.begin && part.end == frame.part.end;
                Key key;
                if (whole)
                    for (int h = 0; h < 2; h++) key[h] = frame.now[h] + state_.key()[h] - frame.before.key[h];
                else
                    key = key_of(part);
                next = enter(part, current, key);
                alive = next >= 0;
            }
            while (!alive) {
                frames_.resize(current + 1);
                if (postpone_block(current)) {
                    next = current;
                    break;
                }
                failed_.add(frames_[current].at_entry);
                current = frames_[current].parent;
                if (current < 0) return Outcome::refuted;
            }
            current = next;
        }
    }
    void ask() {
        not_asked_ += p_.blocks.size();
        if (not_asked_ < kAskAfter) return;
        not_asked_ = 0;
        if (should_stop_ && should_stop_()) stopped_ = true;
    }
    bool exhausted() { return stopped_ || steps_ >= budget_ || steps_ >= max_steps_; }

    int enter(const Part& part, int parent, const Key& key) {
        if (failed_.has(key)) return -1;
        frames_.push_back({parent, part, key, key, {}, -1, false, 0, 0, 0});
        return static_cast<int>(frames_.size()) - 1;
    }

    bool try_block(int f) {
        Frame& frame = frames_[f];
        steps_++;
        ask();
        frame.block = choose_block(frame.part);
        frame.is_sure = state_.is_free(frame.block);
        frame.before = state_.mark();
        seen_.last[frame.block] = state_.low(frame.block);
        frame.parts_begin = frame.parts_next = parts_.size();
        bool ok = state_.place(frame.block);
        if (ok)
            list_parts(frame);
        else
            blame(state_.culprit());
        frame.parts_end = parts_.size();
        if (ok && state_.placed().size() > deepest_) keep_furthest();
        return ok;
    }
    void keep_furthest() {
        deepest_ = state_.placed().size();
        std::fill(seen_.furthest.begin(), seen_.furthest.end(), -1);
        for (int block : state_.placed()) seen_.furthest[block] = state_.offset(block);
    }
    void list_parts(const Frame& frame) {
        const Block& block = p_.blocks[frame.block];
        bool whole = state_.open(block.first) && state_.open(block.last - 1);
        for (int s = block.first + 1; s < block.last && whole; s++) whole = !state_.severed(s);
        if (whole) {
            parts_.push_back(frame.part);
            return;
        }
        split(frame.part, parts_);
        order_parts(frame.parts_begin);
    }
    // The hardest part first, as failing is cheapest before the others are solved.
    void order_parts(size_t begin) {
        std::vector<std::pair<double, int>> keyed;
        for (size_t k = begin; k < parts_.size(); k++) {
            double hard = 0;
            for (int s = parts_[k].begin; s < parts_[k].end; s++)
                if (state_.open(s)) hard = std::max(hard, hardness(s));
            keyed.push_back({-hard, static_cast<int>(k)});
        }
        std::sort(keyed.begin(), keyed.end());
        std::vector<Part> sorted;
        for (auto& [hard, k] : keyed) sorted.push_back(parts_[k]);
        std::copy(sorted.begin(), sorted.end(), parts_.begin() + static_cast<long>(begin));
    }

    bool postpone_block(int f) {
        Frame& frame = frames_[f];
        state_.undo(frame.before);
        parts_.resize(frame.parts_begin);
        if (frame.is_sure) return false;
        bool ok = state_.postpone(frame.block);
        if (!ok) blame(state_.culprit());
        for (int h = 0; h < 2; h++) frame.now[h] += state_.key()[h] - frame.before.key[h];
        return ok;
    }
};

}  // namespace

Decision solve(const Sections& sections, int64_t capacity, uint64_t seed, int64_t max_steps,
               const ShouldStop& should_stop, Experience& seen) {
    Decision out;
    capacity = std::min(capacity, kMaxBytes);
    if (!sections.contradiction.empty() || sections.peak > capacity) {
        out.verdict = Verdict::infeasible;
        return out;
    }
    Searcher searcher(sections, capacity, seed, max_steps, should_stop, seen);
    out.verdict = searcher.run();
    out.steps = searcher.steps();
    if (out.verdict == Verdict::feasible)
        for (size_t i = 0; i < sections.blocks.size(); i++) out.offsets.push_back(searcher.offset(static_cast<int>(i)));
    return out;
}

}  // namespace sublet
