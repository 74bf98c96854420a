// The largest few of many numbers. Of equals the first comes first.

#define NO_PLACE 0xffffffffu

// Returns a number that is larger for a larger score; that of NaN is the largest.
DEVICE u32 order_key(float x) {
    u32 bits = is_nan(x) ? 0x7fc00000u : __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Finds the largest `f` of the indices below `count` that comes after the one in `last`, which takes it: the place and
// its key. Of equals the first comes first. Every thread of the block calls it.
template <class F> DEVICE void next_best(u32 count, F f, u32 *keys, u32 *places, u32 *last) {
    PHASE(t) {
        u32 key = 0u, place = NO_PLACE;
        for (u32 k = t; k < count; k += THREADS) {
            u32 own = order_key(f(k));
            bool left = last[0] == NO_PLACE || own < last[1] || (own == last[1] && k > last[0]);
            if (left && (place == NO_PLACE || own > key)) {
                key = own;
                place = k;
            }
        }
        keys[t] = key;
        places[t] = place;
    }
    PHASE(t) {
        if (t == 0) {
            u32 key = 0u, place = NO_PLACE;
            for (u32 n = 0; n < THREADS; ++n) {
                bool better = place == NO_PLACE || keys[n] > key || (keys[n] == key && places[n] < place);
                if (places[n] != NO_PLACE && better) {
                    key = keys[n];
                    place = places[n];
                }
            }
            last[0] = place;
            last[1] = key;
        }
    }
}

// Calls `take(k, place)` for the `most` indices with the largest keys, whose places ascend with the indices, and
// `leave(k)` for the others below `count`. Every thread of the block calls it.
template <class F, class G, class H>
DEVICE void select_largest(u32 count, u32 most, F key, u32 *counts, u32 *places, u32 *found, G take, H leave) {
    PHASE(t) {
        if (t == 0) found[0] = 0u;
    }
    // The key of the last that is taken, bit by bit.
    for (u32 bit = 0x80000000u; bit > 0u; bit >>= 1) {
        PHASE(t) {
            u32 tried = found[0] | bit, many = 0u;
            for (u32 k = t; k < count; k += THREADS) many += key(k) >= tried ? 1u : 0u;
            counts[t] = many;
        }
        PHASE(t) {
            if (t == 0) {
                u32 many = 0u;
                for (u32 n = 0; n < THREADS; ++n) many += counts[n];
                if (many >= most) found[0] |= bit;
            }
        }
    }
    // Each thread goes on with neighbours: larger keys, and equal ones, before its own.
    u32 size = (count + THREADS - 1u) / THREADS;
    PHASE(t) {
        u32 larger = 0u, equal = 0u;
        for (u32 k = t * size; k < count && k < (t + 1u) * size; ++k) {
            larger += key(k) > found[0] ? 1u : 0u;
            equal += key(k) == found[0] ? 1u : 0u;
        }
        counts[t] = larger;
        places[t] = equal;
    }
    PHASE(t) {
        if (t == 0) {
            u32 larger = 0u, equal = 0u;
            for (u32 n = 0; n < THREADS; ++n) {
                u32 own = counts[n], same = places[n];
                counts[n] = larger;
                places[n] = equal;
                larger += own;
                equal += same;
            }
            // Equal keys that are taken.
            found[1] = most - larger;
        }
    }
    PHASE(t) {
        u32 larger = counts[t], equal = places[t];
        for (u32 k = t * size; k < count && k < (t + 1u) * size; ++k) {
            u32 own = key(k), before = larger + (equal < found[1] ? equal : found[1]);
            if (own > found[0]) {
                take(k, before);
                ++larger;
            } else if (own == found[0] && equal < found[1]) {
                take(k, before);
                ++equal;
            } else {
                leave(k);
            }
        }
    }
}
