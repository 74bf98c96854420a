//! Comparisons of every instruction set with plain code.
#![expect(unsafe_code, reason = "operations that follow pointers")]

use crate::{
    ByteSimd, ByteTask, GroupRows, Isa, STEP, Simd, VectorTask, f16_to_f32, prefetch_to_l1,
    prefetch_to_l2,
};

/// Numbers of many magnitudes and both signs, with special ones among them.
struct Numbers(u64);

impl Numbers {
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn number(&mut self) -> f32 {
        let word = self.word();
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 0.5, 2.5];
        match word >> 60 {
            0 => special[word as usize & 7],
            1..4 => (word >> 20 & 63) as f32 / 2.0 - 16.0,
            4..8 => f32::from_bits(word as u32),
            _ => (word >> 40) as f32 / (1 << 20) as f32 - 8.0,
        }
    }

    fn numbers(&mut self) -> [f32; 16] {
        std::array::from_fn(|_| self.number())
    }

    fn bytes(&mut self) -> [u8; 16] {
        std::array::from_fn(|_| (self.word() >> 30) as u8)
    }
}

/// One check of operations on numbers of a seed: results of the operations as bits, in a fixed order.
#[derive(Clone, Copy)]
struct Results(u64);

/// Bits of a number; which NaN it is may differ.
fn bits_of(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

/// Collects results as words, each with the name of its operation.
#[derive(Default)]
struct Collected(Vec<(&'static str, u32)>);

impl Collected {
    fn add(&mut self, name: &'static str, lanes: impl IntoIterator<Item = f32>) {
        self.0.extend(lanes.into_iter().map(|x| (name, bits_of(x))));
    }
}

impl VectorTask for Results {
    type Output = Vec<(&'static str, u32)>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let mut collected = Collected::default();
        let mut numbers = Numbers(self.0);
        lanes(s, &mut numbers, &mut collected);
        sixteen(s, &mut numbers, &mut collected);
        memory(s, &mut numbers, &mut collected);
        collected.0
    }
}

/// Results of the operations on sixteen values, in as many vectors as they need.
#[inline(always)]
fn lanes<S: Simd>(s: S, numbers: &mut Numbers, to: &mut Collected) {
    let [a, b, c] = [numbers.numbers(), numbers.numbers(), numbers.numbers()];
    let words: [u32; 16] = std::array::from_fn(|_| numbers.word() as u32);
    let narrow: [u16; 16] = std::array::from_fn(|_| numbers.word() as u16);
    let finite = a.map(|x| if x.is_nan() { 1.0 } else { x });
    let rows: [[f32; 8]; 16] = std::array::from_fn(|_| std::array::from_fn(|_| numbers.number()));
    let mut results = vec![Vec::new(); 18];
    let mut columns = vec![Vec::new(); 8];
    let mut set_bits = 0;
    let mut counted = [0, 0];
    let mut least = f32::INFINITY;
    for first in (0..16).step_by(S::LANES) {
        let part = |x: &[f32; 16]| {
            let mut sixteen = [0.0; 16];
            sixteen[..S::LANES].copy_from_slice(&x[first..first + S::LANES]);
            s.load(&sixteen)
        };
        let [x, y, z] = [part(&a), part(&b), part(&c)];
        let mask = s.or(s.and(s.lt(x, y), s.le(y, z)), s.lt(z, x));
        let vectors = [
            x + y,
            x - y,
            x * y,
            x / y,
            s.splat(a[3]),
            s.abs(x),
            s.sqrt(x),
            s.lesser(x, y),
            s.greater(x, y),
            s.nearest_level(x, -8.0, 7.0),
            s.nearest_level(y * s.splat(1e7), 0.0, 31.0),
            s.select(s.lt(x, y), x, z),
            s.select(s.le(x, y), x, z),
            s.select(mask, x, z),
        ];
        for (result, vector) in results.iter_mut().zip(vectors) {
            result.extend_from_slice(&s.array(vector)[..S::LANES]);
        }
        // Eight lanes look at three bits of an index, and sixteen at four.
        for (n, bits) in [0, 5, 29].into_iter().enumerate() {
            let small = words.map(|word| word & !(8 << bits));
            let mut index = [0; 16];
            index[..S::LANES].copy_from_slice(&small[first..first + S::LANES]);
            let found = s.lookup(s.load(&a), s.shift_right(s.integers(&index), bits));
            results[14 + n].extend_from_slice(&s.array(found)[..S::LANES]);
        }
        let masked = narrow.map(|word| word & 0xfff7);
        let found = s.lookup(s.load(&b), s.widened(&masked[first..]));
        results[17].extend_from_slice(&s.array(found)[..S::LANES]);
        set_bits |= s.bits(mask) << first;
        counted[0] += u32::from(s.all(s.le(x, x)));
        counted[1] += u32::from(s.any(s.lt(x, y)));
        least = least.min(s.least(part(&finite)));
        s.each_column(
            |lane| &rows[first + lane],
            |i, column| columns[i].extend_from_slice(&s.array(column)[..S::LANES]),
        );
    }
    for result in results {
        to.add("a vector of lanes", result);
    }
    for column in columns {
        to.add("a column", column);
    }
    to.0.push(("bits", set_bits));
    to.0.push(("all", u32::from(counted[0] as usize == 16 / S::LANES)));
    to.0.push(("any", u32::from(counted[1] > 0)));
    to.add("least", [least + 0.0]);
}

/// Results of the operations on sixteen values at once.
#[inline(always)]
fn sixteen<S: Simd>(s: S, numbers: &mut Numbers, to: &mut Collected) {
    let [a, b, c] = [numbers.numbers(), numbers.numbers(), numbers.numbers()];
    let bytes = numbers.bytes();
    let word = numbers.word();
    let [x, y, z] = [s.load16(&a), s.load16(&b), s.load16(&c)];
    let bits = word as u16;
    let fifths = [(word >> 16) as u16, (word >> 32) as u16];
    let mut store = |name: &'static str, values: S::Wide| {
        let mut out = [0.0; 16];
        s.store16(values, &mut out);
        to.add(name, out);
    };
    store("sum", x + y);
    store("difference", x - y);
    store("product", x * y);
    store("splat16", s.splat16(a[1]));
    store("times", s.times(x, b[0]));
    store("plus", s.plus(x, b[0]));
    store("minus", s.minus(x, b[0]));
    store("signed16", s.signed16(&bytes));
    store("negate16", s.negate16(x, bits));
    store("fma16", s.fma16(x, y, z));
    for values in s.lookup4([x, y], &bytes) {
        store("lookup4", values);
    }
    for values in s.lookup5([[x, y], [z, x]], &bytes, fifths) {
        store("lookup5", values);
    }
    for bit in 0..8 {
        to.0.push(("byte_bits", s.byte_bits(&bytes, bit).into()));
    }
    prefetch_to_l1(std::ptr::null());
    prefetch_to_l2(std::ptr::null());
}

/// Results of reads and writes, from an odd address.
#[inline(always)]
fn memory<S: Simd>(s: S, numbers: &mut Numbers, to: &mut Collected) {
    let mut bytes = vec![0];
    let mut rows = Vec::new();
    for _ in 0..20 {
        let row = numbers.numbers();
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        rows.extend_from_slice(&row);
    }
    let mut transposed = [0.0; 17 * 16];
    // SAFETY: the bytes and numbers are as many as each function reads and writes.
    let vectors = unsafe {
        s.transpose16(rows.as_ptr(), 20, transposed.as_mut_ptr(), 17);
        let from = bytes.as_ptr().add(1);
        [s.read16(from), s.read16_f16(from), s.read16_odd(from), s.read16_even(from)]
    };
    to.add("transpose16", transposed);
    for (vector, name) in vectors.into_iter().zip(["read16", "f16", "odd", "even"]) {
        let mut out = [0.0; 17];
        // SAFETY: sixteen numbers follow the first one.
        unsafe { s.write16(vector, out.as_mut_ptr().add(1)) };
        to.add(name, out);
    }
    let x = s.load16(&numbers.numbers());
    let y = s.load16(&numbers.numbers());
    to.add("sums16", s.sums16([x]));
    to.add("sums16", s.sums16([x, y, x + y, x - y, x * y, y]));
    to.add("apart", s.apart(Sum(&numbers.numbers())));
}

/// Adds the lanes of numbers.
struct Sum<'a>(&'a [f32; 16]);

impl VectorTask for Sum<'_> {
    type Output = [f32; 1];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 1] {
        s.sums16([s.load16(self.0)])
    }
}

#[test]
fn every_instruction_set_has_the_bits_of_the_plain_one() {
    for seed in 1..400_u64 {
        let task = Results(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let plain = Isa::PORTABLE.run(task);
        for isa in Isa::available() {
            let results = isa.run(task);
            assert_eq!(results.len(), plain.len());
            for (n, (found, expected)) in results.iter().zip(&plain).enumerate() {
                assert_eq!(found, expected, "{isa:?}, seed {seed}, result {n}");
            }
        }
    }
}

/// Widens every f16.
struct Widened;

impl VectorTask for Widened {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        (0..=u16::MAX).map(|bits| s.f16(&bits.to_le_bytes(), 0).to_bits()).collect()
    }
}

#[test]
fn every_f16_is_widened_to_the_same_bits() {
    for isa in Isa::available() {
        for (bits, &widened) in Isa::run(isa, Widened).iter().enumerate() {
            assert_eq!(widened, f16_to_f32(bits as u16).to_bits(), "{isa:?} {bits:04x}");
        }
    }
}

#[test]
fn the_best_is_the_last_and_plain_code_the_first() {
    assert_eq!(Isa::available().next(), Some(Isa::PORTABLE));
    assert_eq!(Isa::available().next_back(), Some(Isa::best()));
    #[cfg(target_arch = "aarch64")]
    assert!(Isa::best() > Isa::PORTABLE);
}

/// Products of pairs of bf16, added to sums.
struct PairProducts<'a>(&'a [f32; 16], &'a [f32; 16], &'a [f32; 16]);

impl VectorTask for PairProducts<'_> {
    type Output = Option<[f32; 16]>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let mut out = [0.0; 16];
        let [sums, a, b] = [self.0, self.1, self.2].map(|x| s.load16(x));
        s.store16(s.add_products16(sums, a, b), &mut out);
        S::PAIRS.then_some(out)
    }
}

/// Halves of a word of two bf16, the upper one first.
fn halves_of(pair: f32) -> [f32; 2] {
    [f32::from_bits(pair.to_bits() & 0xffff_0000), f32::from_bits(pair.to_bits() << 16)]
}

#[test]
fn the_upper_numbers_of_pairs_come_first() {
    let mut numbers = Numbers(7);
    // Without numbers below 2^-126, which count as zero.
    let mut next = || (numbers.word() >> 40) as f32 / (1 << 20) as f32 - 8.0;
    for _ in 0..200 {
        let sums = std::array::from_fn(|_| next());
        let a = std::array::from_fn(|_| f32::from_bits(next().to_bits() & 0xffff_0000 | 0x3f80));
        let b = std::array::from_fn(|_| f32::from_bits(next().to_bits() & 0xffff_0000 | 0xc0a0));
        for isa in Isa::available() {
            let found = isa.run_pairs(PairProducts(&sums, &a, &b));
            assert_eq!(found.is_some(), isa.has_pairs(), "{isa:?}");
            let Some(found) = found else { continue };
            for (l, found) in found.into_iter().enumerate() {
                let [a_upper, a_lower] = halves_of(a[l]);
                let [b_upper, b_lower] = halves_of(b[l]);
                let expected = a_lower.mul_add(b_lower, a_upper.mul_add(b_upper, sums[l]));
                assert_eq!(found.to_bits(), expected.to_bits(), "{isa:?}");
            }
        }
    }
}

/// Results of the operations on bytes, for sixteen rows in as many vectors as they need.
struct ByteResults(u64);

impl ByteTask for ByteResults {
    type Output = Vec<(&'static str, u32)>;

    #[inline(always)]
    fn run<S: ByteSimd>(self, s: S) -> Self::Output {
        let mut numbers = Numbers(self.0);
        let mut collected = Collected::default();
        let table = numbers.bytes().map(u8::cast_signed);
        let lines: Vec<u8> = (0..32).flat_map(|_| numbers.bytes()).collect();
        let codes: [i8; 4 * STEP] = std::array::from_fn(|_| (numbers.word() as i8).max(-127));
        let floats = [numbers.numbers(), numbers.numbers(), numbers.numbers()];
        let starts: [i32; 4] = std::array::from_fn(|_| numbers.word() as i32 >> 8);
        let mut by_lane = vec![[0.0; 16]; 22];
        for first in (0..16).step_by(S::LANES) {
            let mut put = |n: usize, vector: S::F| {
                by_lane[n][first..first + S::LANES].copy_from_slice(&s.array(vector)[..S::LANES]);
            };
            // SAFETY: the lines, codes and numbers are as many as each function reads.
            unsafe {
                let line = |n: usize| s.read_bytes(lines.as_ptr().add(64 * n + 4 * first));
                let float = |n: usize| s.read_f32(floats[n].as_ptr().add(first).cast());
                let low = s.splat_byte(15);
                let levels: [S::I; 8] =
                    [0, 1, 2, 3, 4, 5, 6, 7].map(|n: usize| s.and_bytes(line(n), low));
                let signed = levels
                    .map(|level: S::I| s.add_signed(s.lookup_bytes(s.byte_table(&table), level)));
                let places = [
                    s.pairs_right::<0>(line(0)),
                    s.pairs_right::<3>(line(0)),
                    s.pairs_right::<4>(line(0)),
                    s.pairs_left::<1>(line(0)),
                    s.pairs_left::<4>(line(0)),
                    s.or_bytes(line(0), s.splat_byte(0x21)),
                    s.splat_int(starts[0]),
                ];
                for (n, place) in places.into_iter().enumerate() {
                    put(n, s.to_float(place));
                }
                put(7, s.to_float(s.dot(s.splat_int(starts[0]), levels[0], codes.as_ptr())));
                // What is added to signed bytes is taken away again.
                let added: i32 = codes[..4].iter().map(|x| S::SIGNED * i32::from(*x)).sum();
                let start = s.splat_int(starts[1] - added);
                put(8, s.to_float(s.dot_signed(start, signed[0], codes.as_ptr())));
                let bytes = lines.as_ptr().add(first);
                put(9, s.read_i8(bytes));
                put(10, s.read_u8(bytes));
                put(11, s.read_f16(lines.as_ptr().add(2 * first)));
                put(12, s.read_bf16(lines.as_ptr().add(2 * first)));
                put(13, s.fma(float(0), float(1), float(2)));
                put(14, s.minus_product(float(0), float(1), float(2)));
                let mut written = [0.0; 17];
                s.write(float(0), written.as_mut_ptr().add(1));
                put(15, s.read_f32(written.as_ptr().add(1).cast()));
                let rows = GroupRows {
                    codes: codes.as_ptr(),
                    starts: None,
                    scales: floats[1].as_ptr(),
                    sums: None,
                };
                put(16, s.add_group::<0>(float(0), &levels, false, float(2), &rows));
                put(17, s.add_group::<3>(float(0), &levels[..4], false, float(2), &rows));
                let starts = Some(starts.as_ptr());
                let rows = GroupRows { starts, ..rows };
                put(18, s.add_group::<2>(float(0), &levels, false, float(2), &rows));
                let sums = Some((float(1), floats[2].as_ptr()));
                let rows = GroupRows { sums, ..rows };
                put(19, s.add_group::<1>(float(0), &levels, false, float(2), &rows));
                let rows = GroupRows { starts: None, ..rows };
                put(20, s.add_group::<3>(float(0), &levels[4..], false, float(2), &rows));
                let begins: [i32; 4] = std::array::from_fn(|row| {
                    let codes = &codes[STEP * row..][..STEP];
                    -codes.iter().map(|x| S::SIGNED * i32::from(*x)).sum::<i32>()
                });
                let rows = GroupRows { starts: Some(begins.as_ptr()), ..rows };
                put(21, s.add_group::<2>(float(0), &signed, true, float(2), &rows));
            }
        }
        for lanes in by_lane {
            collected.add("bytes", lanes);
        }
        collected.0
    }
}

#[test]
fn every_instruction_set_has_the_bytes_of_the_plain_one() {
    for seed in 1..400_u64 {
        let seed = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let plain = Isa::PORTABLE.run_bytes(ByteResults(seed));
        for isa in Isa::available() {
            let results = isa.run_bytes(ByteResults(seed));
            for (n, (found, expected)) in results.iter().zip(&plain).enumerate() {
                assert_eq!(
                    found,
                    expected,
                    "{isa:?}, seed {seed}, result {} lane {}",
                    n / 16,
                    n % 16
                );
            }
        }
    }
}
