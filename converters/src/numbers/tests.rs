use super::*;

/// Every 16-bit value, its neighbours in f32, and the ties between it and the next.
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
        let (f16, bf16) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        let quiet = |nan: bool, quiet: u32| if nan { quiet } else { 0 };
        let want = f16.to_f32().to_bits() | quiet(f16.is_nan(), 0x0040_0000);
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

/// The definition: sign, four bits of exponent with bias 7, three of mantissa.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = ((bits >> 3 & 15) as i32, (bits & 7) as f32);
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
        let (got, want) = (f8_e4m3_to_f32(bits), e4m3(bits));
        assert!(got == want || got.is_nan() && want.is_nan(), "{bits:02x}: {got} {want}");
        assert_eq!(got.is_sign_negative(), bits & 0x80 != 0);
    }
    let nearest = |value: f32| {
        // The nearest of all codes; of two, the even one.
        let distance = |code: u8| (e4m3(code) as f64 - value.abs() as f64).abs();
        let best = (0..0x7f)
            .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
    };
    for code in 0..0x7e {
        for value in around(e4m3(code), e4m3(code + 1)) {
            for value in [value, -value].into_iter().filter(|value| !value.is_nan()) {
                assert_eq!(f32_to_f8_e4m3(value), nearest(value), "{value:e}");
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
