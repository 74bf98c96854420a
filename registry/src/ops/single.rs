//! Ops that the specs of one family alone call, and why no other ops make them.

/// Names of ops, each with the reason.
const REASONS: &[(&str, &str)] = &[
    (
        "attend_pooled",
        "one softmax is over the keys of a window and those of blocks, and no op joins two softmaxes",
    ),
    (
        "block_mean",
        "the mean is of rows, summed in f32 with one rounding, and `block_pool` rounds each product",
    ),
    (
        "choose_by_token",
        "`embed` rounds rows to the activation dtype, in which not every number of an expert is exact",
    ),
    (
        "differ",
        "its share is made of exponentials of products of weights, and no op gives an exponential",
    ),
    (
        "grouped_conv",
        "both convolutions see zeros before the first position, and no other op mixes channels of several positions \
         with one rounding",
    ),
    (
        "index_blocks",
        "a block counts the largest of its products with a head's query, and `index_topk` adds up those of all heads",
    ),
    (
        "lightning",
        "a first step goes by blocks and later ones go singly, with a rounding after each product, and `delta_rule` \
         is in f32",
    ),
    (
        "mlstm",
        "both gates are exponentials that are divided by the largest so far, which no other recurrence keeps",
    ),
    (
        "near_shares",
        "the numbers that a softmax is over depend on the numbers themselves, and no other op masks by value",
    ),
    ("ngram_embed", "hashes are of integers of 64 bits, and all other ops compute with floats"),
    (
        "rg_lru",
        "its decay is a power of a learned number that each channel has, rounded at steps of its own, and scans have \
         exponentials of products",
    ),
    ("sign", "the quotient of a number and its absolute value is NaN at 0"),
    (
        "weight_blend",
        "one minus a raw tensor is rounded before it multiplies, and no op gives a raw tensor as a value",
    ),
    (
        "wkv",
        "a position's own weight differs from that with which it is kept, and both are divided by the largest so far",
    ),
    ("xielu", "its branch below 0 is an exponential minus one, and no op gives that"),
];

/// Returns why an op that one family alone uses is not made of others.
pub fn single_family_reason(name: &str) -> Option<&'static str> {
    REASONS.iter().find(|(op, _)| *op == name).map(|(_, reason)| *reason)
}
