// Randomness and logarithms that are the same on every machine.
#pragma once
#include <cstdint>

namespace sublet {

inline uint64_t scramble(uint64_t z) {  // the finaliser of splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(scramble(seed + 0x9e3779b97f4a7c15u)) {}
    uint64_t next() { return scramble(state += 0x9e3779b97f4a7c15u); }
    uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64); }
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

// log2, linear between powers of two: libm's may differ in the last digit from machine to machine.
inline double log2_of(int64_t x) {
    if (x < 1) return 0;
    int bits = 63 - __builtin_clzll(static_cast<uint64_t>(x));
    return bits + (static_cast<double>(x) / static_cast<double>(uint64_t{1} << bits) - 1.0);
}

}  // namespace sublet
