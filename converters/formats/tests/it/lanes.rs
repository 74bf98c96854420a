//! Checks that the bytes are those of the scalar code, on any CPU.

use lanes::Isa;
use onboard_formats::codec::{self, BlockType};

/// Generator of uniform integers, and of values derived from them.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x14_0579);
        (self.0 >> 32) as u32
    }

    /// Returns a value in -1..1.
    fn unit(&mut self) -> f32 {
        (self.bits() as i32) as f32 / 2_147_483_648.0
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.bits().is_multiple_of(n)
    }
}

/// Function that draws the value at a position of a row.
type Draw = Box<dyn FnMut(&mut Random, usize) -> f32>;

/// Returns rows of all kinds: with values typical of weights, and with extreme values.
fn rows(row: usize) -> Vec<(String, Vec<f32>)> {
    let mut random = Random(7);
    let mut rows = Vec::new();
    let mut add = |name: &str, mut number: Draw| {
        let numbers = (0..row).map(|at| number(&mut random, at)).collect();
        rows.push((name.to_owned(), numbers));
    };
    for scale in [1.0, 0.02, 1e-4] {
        add(
            &format!("normal {scale}"),
            Box::new(move |random, _| (0..6).map(|_| random.unit()).sum::<f32>() * scale),
        );
    }
    add("far from zero", Box::new(|random, _| 10.0 + random.unit() * 1e-3));
    add("far below zero", Box::new(|random, _| random.unit() * 1e-6 - 10.0));
    add("negative", Box::new(|random, _| -random.unit().abs()));
    add(
        "one outlier a group",
        Box::new(|random, at| random.unit() * if at % 32 == 5 { 1e3 } else { 1.0 }),
    );
    add("sparse", Box::new(|random, _| if random.one_in(9) { random.unit() } else { 0.0 }));
    add(
        "blocks of zeros",
        Box::new(|random, at| if at / 16 % 3 == 0 { 0.0 } else { random.unit() }),
    );
    add("few values", Box::new(|random, _| (random.unit() * 3.0).round() * 0.5));
    for value in [0.0, -0.0, 1.0, -0.02, 1e-16, 1e-40, f32::MAX, f32::MIN] {
        add(&format!("all {value:e}"), Box::new(move |_, _| value));
    }
    for exponent in [-45, -40, -38, -37, -30, -19, -16, -15, -14, 10, 19, 30, 38] {
        let scale = 10_f64.powi(exponent);
        add(
            &format!("uniform 1e{exponent}"),
            Box::new(move |random, _| (random.unit() as f64 * scale) as f32),
        );
    }
    add(
        "any finite bits",
        Box::new(|random, _| {
            let x = f32::from_bits(random.bits());
            if x.is_finite() { x } else { 0.0 }
        }),
    );
    add(
        "any magnitude, one a group",
        Box::new(|random, at| {
            f32::from_bits((random.bits() & 0x807f_ffff) | (at as u32 / 32 * 37 % 254) << 23)
        }),
    );
    rows
}

fn importances(row: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut random = Random(11);
    vec![
        (
            "squares",
            draws(row, &mut random, &mut |random| random.unit() * random.unit().abs())
                .iter()
                .map(|x| x * x)
                .collect(),
        ),
        (
            "tiny, some zero",
            draws(row, &mut random, &mut |random| {
                if random.one_in(3) { 0.0 } else { random.unit().abs() * 1e-20 }
            }),
        ),
        ("huge", draws(row, &mut random, &mut |random| random.unit().abs() * 1e30)),
        ("below zero", draws(row, &mut random, &mut Random::unit)),
    ]
}

fn draws(row: usize, random: &mut Random, one: &mut dyn FnMut(&mut Random) -> f32) -> Vec<f32> {
    (0..row).map(|_| one(random)).collect()
}

fn encoded(
    isa: Isa,
    ty: BlockType,
    numbers: &[f32],
    row: usize,
    weights: Option<&[f32]>,
) -> Vec<u8> {
    let mut out = vec![0xaa; numbers.len() / ty.elements() * ty.bytes()];
    codec::encode_in(isa, ty, numbers, row, weights, &mut out)
        .unwrap_or_else(|error| panic!("{ty}: {error}"));
    out
}

fn formats() -> impl Iterator<Item = BlockType> {
    BlockType::all().filter(|ty| {
        let mut out = vec![0; 256 / ty.elements() * ty.bytes()];
        codec::encode(*ty, &[0.5; 256], 256, Some(&[1.0; 256]), &mut out).is_ok()
    })
}

#[test]
fn every_width_gives_the_same_bytes() {
    // Rows that no number of lanes divides, and rows that several lanes share.
    for row in [256, 1280] {
        let rows = rows(row);
        let all: Vec<f32> = rows.iter().flat_map(|(_, row)| row).copied().collect();
        let importances = importances(row);
        let weights = importances.iter().map(|(name, weights)| (*name, Some(&weights[..])));
        for ty in formats() {
            for (weights_name, weights) in weights.clone().chain([("no", None)]) {
                if weights.is_none() && ty.needs_importance() {
                    continue;
                }
                let plain = encoded(Isa::PORTABLE, ty, &all, row, weights);
                for isa in Isa::available().skip(1) {
                    let wide = encoded(isa, ty, &all, row, weights);
                    let bytes = row / ty.elements() * ty.bytes();
                    for ((name, _), (plain, wide)) in
                        rows.iter().zip(plain.chunks(bytes).zip(wide.chunks(bytes)))
                    {
                        let block = plain.chunks(ty.bytes()).zip(wide.chunks(ty.bytes()));
                        let differs = block.clone().position(|(plain, wide)| plain != wide);
                        assert_eq!(
                            differs, None,
                            "{ty}, {isa:?}, {weights_name} importances, row `{name}` of {row}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn rows_do_not_depend_on_each_other() {
    let row = 512;
    let rows = rows(row);
    let all: Vec<f32> = rows.iter().flat_map(|(_, row)| row).copied().collect();
    let (_, weights) = &importances(row)[0];
    for ty in formats() {
        let together = encoded(Isa::best(), ty, &all, row, Some(weights));
        let apart: Vec<u8> = rows
            .iter()
            .flat_map(|(_, numbers)| encoded(Isa::best(), ty, numbers, row, Some(weights)))
            .collect();
        assert!(together == apart, "{ty}");
    }
}
