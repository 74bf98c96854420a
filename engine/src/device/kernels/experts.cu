// `experts`: the MLPs of a mixture, for pairs of a row and one of its choices.
//
// Pairs are sorted by expert, so that rows with the same expert share a read of its weights.

// Sorts pairs by expert, a thread for each. Those without an expert come last, as expert `all`.
KERNEL(experts_order, const u8 *chosen, u32 stored, u32 all, u32 pairs, u32 *order, u32 *experts) {
    PHASE(t) {
        u64 pair = (u64)BLOCK * THREADS + t;
        if (pair < pairs) {
            u32 own = place_of(chosen, stored, pair, all), rank = 0u;
            for (u32 n = 0; n < pairs; ++n) {
                u32 other = place_of(chosen, stored, n, all);
                rank += other < own || (other == own && n < pair) ? 1u : 0u;
            }
            order[rank] = (u32)pair;
            experts[rank] = own;
        }
    }
}

// Rows times the weights of their choices, rounded: `[pairs, width]`.
KERNEL(experts_inputs, const u8 *x, u32 stored, const u8 *weights, u32 weights_dtype, u32 k, u32 width, u8 *y,
       u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 pair = n / width;
            float z = load(x, stored, pair / k * width + n % width);
            store(y, dtype, n, z * load(weights, weights_dtype, pair));
        }
    }
}

// A matrix of each pair's expert: `[pairs, outputs]`. `share`: pairs for each row of `x`. Experts from `n` on have no
// matrix.
KERNEL(experts_linear, const u8 *x, u32 x_dtype, u32 share, const u32 *order, const u32 *experts, u32 pairs,
       const u64 *table, u32 n, u32 outputs, u32 inputs, u8 *y, u32 dtype) {
    SHARED(float, part, THREADS * LINEAR_ROWS);
    u32 groups = (outputs + LINEAR_OUTPUTS - 1u) / LINEAR_OUTPUTS;
    u32 first = BLOCK / groups * LINEAR_ROWS;
    u32 count = pairs - first < LINEAR_ROWS ? pairs - first : LINEAR_ROWS;
    u32 output = BLOCK % groups * LINEAR_OUTPUTS;
    PHASE(t) {
        u32 o = output + t / 16u;
        for (u32 r = 0; r < count && o < outputs;) {
            u32 expert = experts[first + r], run = 1u;
            while (r + run < count && experts[first + r + run] == expert) ++run;
            if (expert < n) {
                u64 starts[LINEAR_ROWS];
                float sums[LINEAR_ROWS];
                for (u32 m = 0; m < LINEAR_ROWS; ++m) starts[m] = m < run ? (u64)(order[first + r + m] / share) * inputs : 0u;
                const u64 *matrix = table + (u64)expert * EXPERT_WORDS;
                lane_of(x, x_dtype, starts, run, (const u8 *)matrix[0], (u32)matrix[1],
                        __uint_as_float((u32)(matrix[1] >> 32)), o, inputs, t % 16u, sums);
                for (u32 m = 0; m < LINEAR_ROWS; ++m)
                    if (m < run) part[(r + m) * THREADS + t] = sums[m];
            }
            r += run;
        }
    }
    add_lanes(part);
    PHASE(t) {
        u32 o = output + t / 16u, r = t % 16u;
        if (o < outputs && r < count && experts[first + r] < n) {
            const float *bias = (const float *)table[(u64)experts[first + r] * EXPERT_WORDS + 2u];
            float sum = round_to(dtype, part[r * THREADS + t / 16u * 16u]);
            // A bias is added to the rounded product.
            store(y, dtype, (u64)order[first + r] * outputs + o, bias ? sum + bias[o] : sum);
        }
    }
}

// The gated activation, in place of the gate. `limited`: bounds on both. `turned`: the gate is
// `g * sigmoid(alpha * g)`, and 1 is added to the other. `gate_cap`, `up_cap`: soft caps of the gate before its sigmoid
// multiplies it, and of the other; 0 without. `inner`: the dtype of the activation before the product.
KERNEL(experts_gate, u32 kind, u8 *gate, const u8 *up, u32 limited, float limit, u32 turned, float alpha, float gate_cap,
       float up_cap, u32 inner, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float g = load(gate, dtype, n), u = load(up, dtype, n);
            if (limited) {
                g = g > limit ? limit : g;
                u = u > limit ? limit : u < -limit ? -limit : u;
            }
            if (turned) {
                float bent = round_to(dtype, sigmoid(round_to(dtype, g * alpha)));
                float kept = round_to(dtype, g * bent);
                store(gate, dtype, n, round_to(dtype, u + 1.0f) * kept);
            } else if (gate_cap != 0.0f) {
                store(gate, dtype, n, tanhf(g / gate_cap) * gate_cap * sigmoid(g) * (tanhf(u / up_cap) * up_cap));
            } else {
                store(gate, dtype, n, activate(kind, inner, g) * u);
            }
        }
    }
}

// Adds what the experts of a row made, in the order of their numbers, each sum rounded to `each`; a thread for each
// number. Experts from `n` on give back their input, of which there are `share` pairs for each row.
KERNEL(experts_sum, const u8 *made, const u8 *x, u32 x_dtype, u32 share, const u8 *chosen, u32 chosen_dtype,
       const u8 *weights, u32 weights_dtype, u32 on_input, u32 n, u32 all, u32 k, u32 width, u32 each, u8 *y, u32 dtype,
       u64 count) {
    PHASE(t) {
        u64 place = (u64)BLOCK * THREADS + t;
        if (place < count) {
            u64 row = place / width, column = place % width;
            float out = 0.0f;
            bool lost = false;
            u32 expert = 0u, choice = NO_PLACE;
            for (u32 step = 0; step < k; ++step) {
                // The next choice in the order of experts, then of choices.
                u32 next = all + 1u, at = 0u;
                for (u32 c = 0; c < k; ++c) {
                    u32 own = place_of(chosen, chosen_dtype, row * k + c, all);
                    bool after = choice == NO_PLACE || own > expert || (own == expert && c > choice);
                    if (after && own < next) {
                        next = own;
                        at = c;
                    }
                }
                expert = next;
                choice = at;
                lost = lost || expert >= all;
                u64 pair = row * k + at;
                float z = expert < n ? load(made, dtype, pair * width + column)
                                     : load(x, x_dtype, pair / share * width + column);
                if (!on_input) z = round_to(each, z * load(weights, weights_dtype, pair));
                out = round_to(each, out + z);
            }
            store(y, dtype, place, lost ? NOT_A_NUMBER : out);
        }
    }
}
