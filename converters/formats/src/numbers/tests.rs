use super::*;

/// Returns a 16-bit value, its neighbours in f32, and the ties between it and the next.
fn around(value: f32, next: f32) -> Vec<f32> {
    let middle = f32::midpoint(value, next);
    let mut all = vec![value, middle];
    for base in [value, middle] {
        all.extend([f32::from_bits(base.to_bits().wrapping_add(1))]);
        all.extend([f32::from_bits(base.to_bits().wrapping_sub(1))]);
    }
    all
}

#[test]
fn sixteen_bit_formats_agree_with_half_on_every_pattern() {
    for bits in 0..=u16::MAX {
        let f16 = half::f16::from_bits(bits);
        let bf16 = half::bf16::from_bits(bits);
        let quiet = if f16.is_nan() { 0x0040_0000 } else { 0 };
        let want = f16.to_f32().to_bits() | quiet;
        assert_eq!(f16_to_f32(bits).to_bits(), want, "f16 {bits:04x}");
        // Widening bf16 is a shift: even a signalling NaN keeps its bits.
        assert_eq!(bf16_to_f32(bits).to_bits(), (bits as u32) << 16, "bf16 {bits:04x}");
        let f16s = around(f16.to_f32(), half::f16::from_bits(bits.wrapping_add(1)).to_f32());
        let bf16s = around(bf16.to_f32(), half::bf16::from_bits(bits.wrapping_add(1)).to_f32());
        for value in f16s.into_iter().chain(bf16s) {
            let want = half::f16::from_f32(value).to_bits();
            assert_eq!(f32_to_f16(value), want, "f16 of {value:e} {:08x}", value.to_bits());
            let want = half::bf16::from_f32(value).to_bits();
            assert_eq!(f32_to_bf16(value), want, "bf16 of {value:e} {:08x}", value.to_bits());
        }
    }
}

/// Decodes e4m3 by definition: sign, four bits of exponent with bias 7, three of mantissa.
fn e4m3(bits: u8) -> f32 {
    let exponent = (bits >> 3 & 15) as i32;
    let mantissa = (bits & 7) as f32;
    let value = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2_f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { value } else { -value }
}

#[test]
fn f8_e4m3_follows_its_definition() {
    for bits in 0..=u8::MAX {
        let got = f8_e4m3_to_f32(bits);
        let want = e4m3(bits);
        assert!(got == want || got.is_nan() && want.is_nan(), "{bits:02x}: {got} {want}");
        assert_eq!(got.is_sign_negative(), bits & 0x80 != 0);
    }
    for code in 0..0x7e {
        for value in around(e4m3(code), e4m3(code + 1)) {
            for value in [value, -value].into_iter().filter(|value| !value.is_nan()) {
                assert_eq!(f32_to_f8_e4m3(value), nearest_code(value), "{value:e}");
            }
        }
    }
    for (value, want) in [
        (448.0, 0x7e),
        (460.0, 0x7e),
        (1e30, 0x7e),
        (f32::INFINITY, 0x7e),
        (-f32::INFINITY, 0xfe),
        (-1e9, 0xfe),
        (f32::NAN, 0x7f),
        (1e-30, 0),
        (-1e-30, 0x80),
    ] {
        assert_eq!(f32_to_f8_e4m3(value), want, "{value}");
    }
}

fn nearest_code(value: f32) -> u8 {
    // The nearest of all codes; in a tie, the even one.
    let best = (0..0x7f).min_by(|&a, &b| {
        distance(a, value).total_cmp(&distance(b, value)).then((a & 1).cmp(&(b & 1)))
    });
    best.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
}

fn distance(code: u8, value: f32) -> f64 {
    (e4m3(code) as f64 - value.abs() as f64).abs()
}

#[test]
fn the_other_f8_formats_widen() {
    assert_eq!(f8_e5m2_to_f32(0x3c), 1.0);
    assert_eq!(f8_e5m2_to_f32(0x7b), 57344.0);
    assert_eq!(f8_e5m2_to_f32(0x01), 2_f32.powi(-16));
    assert!(f8_e5m2_to_f32(0x7c).is_infinite() && f8_e5m2_to_f32(0x7f).is_nan());
    for bits in 0..255 {
        assert_eq!(f8_e8m0_to_f32(bits) as f64, 2_f64.powi(bits as i32 - 127));
    }
    assert!(f8_e8m0_to_f32(255).is_nan());
}

#[test]
fn many_numbers_are_converted_as_one_is() {
    let values: Vec<f32> = (0..SLAB + 77).map(|i| (i as f32 - 1000.0) * 0.37).collect();
    for dtype in [FileDtype::F32, FileDtype::F16, FileDtype::Bf16, FileDtype::F8E4m3] {
        let mut bytes = vec![0; values.len() * dtype.size()];
        from_f32(dtype, &values, &mut bytes).unwrap();
        let mut back = vec![0.0; values.len()];
        to_f32(dtype, &bytes, &mut back).unwrap();
        for (&value, &back) in values.iter().zip(&back) {
            let want = match dtype {
                FileDtype::F16 => f16_to_f32(f32_to_f16(value)),
                FileDtype::Bf16 => bf16_to_f32(f32_to_bf16(value)),
                FileDtype::F8E4m3 => f8_e4m3_to_f32(f32_to_f8_e4m3(value)),
                _ => value,
            };
            assert_eq!(back, want);
        }
    }
    let mut bits = vec![0; values.len()];
    let mut back = vec![0.0; values.len()];
    round_bf16(&values, &mut bits);
    widen_bf16(&bits, &mut back);
    assert_eq!(back[5], bf16_to_f32(f32_to_bf16(values[5])));
    round_f16(&values, &mut bits);
    widen_f16(&bits, &mut back);
    assert_eq!(back[5], f16_to_f32(f32_to_f16(values[5])));
}

#[test]
fn what_cannot_be_converted_is_said() {
    let dtype = FileDtype::I32;
    assert_eq!(to_f32(dtype, &[0; 4], &mut [0.0]), Err(Error::NotFloat { dtype }));
    assert_eq!(from_f32(dtype, &[0.0], &mut [0; 4]), Err(Error::NotWritten { dtype }));
    let dtype = FileDtype::Bf16;
    let length = Error::Length { dtype, found: 3, expected: 1 };
    assert_eq!(to_f32(dtype, &[0; 3], &mut [0.0]), Err(length.clone()));
    assert_eq!(from_f32(dtype, &[0.0], &mut [0; 3]), Err(length));
}

fn splitmix(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `fixtures/golden_fp8/make.py` hashed torch's results for the same values.
#[test]
fn e4m3_rounds_as_torch_does() {
    let text = include_str!("../../../../fixtures/golden_fp8/golden.json");
    let golden: serde_json::Value = serde_json::from_str(text).unwrap();
    let bf16 = digest_of_codes(&mut (0..=u16::MAX).map(bf16_to_f32));
    assert_eq!(golden["bf16"], bf16);
    let f32s = digest_of_codes(&mut (1..=1_000_000_u64).map(|n| {
        let z = splitmix(n);
        let bits = z as u32;
        let near = (bits & 0x807f_ffff) | (115 + ((z >> 40) as u32) % 24) << 23;
        f32::from_bits(if n.is_multiple_of(2) { near } else { bits })
    }));
    assert_eq!(golden["f32"], f32s);
}

fn digest_of_codes(values: &mut dyn Iterator<Item = f32>) -> String {
    use sha2::Digest as _;

    let bytes: Vec<u8> = values.map(f32_to_f8_e4m3).collect();
    format!("{:x}", sha2::Sha256::digest(&bytes))
}

#[test]
fn four_bits_take_the_nearest_and_the_even_of_two() {
    for n in -8000..=8000_i16 {
        let x = f32::from(n) / 1000.0;
        let code = f32_to_f4_e2m1(x);
        let least =
            (0..16).map(|code| (f4_e2m1_to_f32(code) - x).abs()).fold(f32::INFINITY, f32::min);
        assert_eq!((f4_e2m1_to_f32(code) - x).abs(), least, "{x} as {code}");
        let ties = (0..8).filter(|size| (F4_E2M1[*size as usize] - x.abs()).abs() == least);
        if ties.count() > 1 {
            assert_eq!(code & 1, 0, "{x} as {code}");
        }
        assert_eq!(code & 8 != 0, x.is_sign_negative(), "{x} as {code}");
    }
    assert_eq!((f32_to_f4_e2m1(1e30), f32_to_f4_e2m1(f32::NEG_INFINITY)), (7, 15));
}

#[test]
fn powers_of_two_are_below_or_above() {
    for bits in 0..=254_u8 {
        let power = f8_e8m0_to_f32(bits);
        assert_eq!(f32_to_f8_e8m0_floor(power), bits, "{power:e}");
        assert_eq!(ceil_to_power(power), power.max(f32::MIN_POSITIVE), "{power:e}");
        let above = f32::from_bits(power.to_bits() + 1);
        assert_eq!(f32_to_f8_e8m0_floor(above), bits);
        if (1..254).contains(&bits) {
            assert_eq!(f32_to_f8_e8m0_floor(f32::from_bits((power * 2.0).to_bits() - 1)), bits);
            assert_eq!(ceil_to_power(above), power * 2.0);
        }
    }
}
