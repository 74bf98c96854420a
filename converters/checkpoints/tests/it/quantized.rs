//! Tests of quantized checkpoints of other programs: each layout is packed here by its definition, and
//! decoded.

use std::collections::BTreeMap;
use std::path::Path;

use formats::numbers;
use formats::safetensors::{FileDtype, TensorSpec, Writer};
use onboard_checkpoints::checkpoint::{Checkpoint, CodeType, Rounding, ScaleSharing};

const OUTPUTS: usize = 16;
const INPUTS: usize = 64;

type Stored = Vec<(&'static str, FileDtype, Vec<usize>, Vec<u8>)>;

fn checkpoint(folder: &Path, quantization: &str, stored: &Stored) -> Checkpoint {
    let config = format!("{{\"quantization_config\":{quantization}}}");
    fs_err::write(folder.join("config.json"), config).unwrap();
    let declared: Vec<TensorSpec> = stored
        .iter()
        .map(|(name, dtype, shape, _)| TensorSpec {
            name: (*name).to_owned(),
            dtype: *dtype,
            shape: shape.clone(),
        })
        .collect();
    let path = folder.join("model.safetensors");
    let mut writer = Writer::create(&path, &BTreeMap::new(), &declared).unwrap();
    for (name, _, _, bytes) in stored {
        writer.write(name, bytes).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(folder).unwrap()
}

/// Returns the values of the only weight in the checkpoint.
fn numbers_of(quantization: &str, stored: &Stored) -> Vec<f32> {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(dir.path(), quantization, stored);
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["m.weight"]);
    assert_eq!(checkpoint.info("m.weight").unwrap().shape, [OUTPUTS, INPUTS]);
    assert!(checkpoint.bytes("m.weight").is_err());
    let flow = checkpoint.flow("m.weight").unwrap();
    let mut values = vec![0.0; flow.len()];
    flow.read(0, &mut values);
    // Any range equals that of the whole.
    for (at, count) in [(0, 1), (1, 200), (63, 2), (700, 324), (1023, 1)] {
        let mut part = vec![0.0; count];
        flow.read(at, &mut part);
        assert_eq!(part, values[at..at + count], "{at}");
    }
    values
}

/// Returns a code of `bits` bits, different for each position.
fn code(output: usize, input: usize, bits: u32) -> u32 {
    ((output * 31 + input * 7 + output * input) as u32) & ((1 << bits) - 1)
}

fn scale(group: usize, output: usize) -> f32 {
    ((group * OUTPUTS + output + 1) as f32) / 64.0
}

fn f16s(numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers.flat_map(|x| numbers::f32_to_f16(x).to_le_bytes()).collect()
}

fn words(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.flat_map(u32::to_le_bytes).collect()
}

/// Returns `groups x OUTPUTS` scales.
fn scales(groups: usize) -> Vec<u8> {
    f16s((0..groups).flat_map(|g| (0..OUTPUTS).map(move |o| scale(g, o))))
}

fn zero(group: usize, output: usize, bits: u32) -> u32 {
    ((group * 5 + output) as u32) & ((1 << bits) - 1)
}

#[test]
fn gptq_is_read() {
    for (bits, v2, ordered) in [(4, false, false), (4, true, true), (8, false, true)] {
        let per_word = (32 / bits) as usize;
        let groups = 4;
        let codes = words((0..INPUTS / per_word).flat_map(|w| {
            (0..OUTPUTS).map(move |o| {
                (0..per_word)
                    .fold(0, |word, n| word | code(o, w * per_word + n, bits) << (n as u32 * bits))
            })
        }));
        let zeros = words((0..groups).flat_map(|g| {
            (0..OUTPUTS / per_word).map(move |w| {
                (0..per_word)
                    .fold(0, |word, n| word | zero(g, w * per_word + n, bits) << (n as u32 * bits))
            })
        }));
        let mut stored: Stored = vec![
            ("m.qweight", FileDtype::I32, vec![INPUTS / per_word, OUTPUTS], codes),
            ("m.qzeros", FileDtype::I32, vec![groups, OUTPUTS / per_word], zeros),
            ("m.scales", FileDtype::F16, vec![groups, OUTPUTS], scales(groups)),
        ];
        if ordered {
            let order = words((0..INPUTS).map(|i| group_of(ordered, groups, i) as u32));
            stored.push(("m.g_idx", FileDtype::I32, vec![INPUTS], order));
        }
        let format = if v2 { "gptq_v2" } else { "gptq" };
        let section = format!(
            "{{\"quant_method\":\"gptq\",\"bits\":{bits},\"checkpoint_format\":\"{format}\"}}"
        );
        let values = numbers_of(&section, &stored);
        for (n, x) in values.iter().enumerate() {
            let o = n / INPUTS;
            let i = n % INPUTS;
            let zero = zero(group_of(ordered, groups, i), o, bits) + u32::from(!v2);
            let zero = (zero & ((1 << bits) - 1)) as f32;
            assert_eq!(
                *x,
                (code(o, i, bits) as f32 - zero) * scale(group_of(ordered, groups, i), o),
                "{bits} {o} {i}"
            );
        }
    }
}

fn group_of(ordered: bool, groups: usize, input: usize) -> usize {
    if ordered { input * 11 % groups } else { input / (INPUTS / groups) }
}

#[test]
fn awq_is_read() {
    let groups = 2;
    let codes = words(
        (0..INPUTS)
            .flat_map(|i| (0..OUTPUTS / 8).map(move |w| awq_word(&|n| code(w * 8 + n, i, 4)))),
    );
    let zeros = words(
        (0..groups)
            .flat_map(|g| (0..OUTPUTS / 8).map(move |w| awq_word(&|n| zero(g, w * 8 + n, 4)))),
    );
    let stored: Stored = vec![
        ("m.qweight", FileDtype::I32, vec![INPUTS, OUTPUTS / 8], codes),
        ("m.qzeros", FileDtype::I32, vec![groups, OUTPUTS / 8], zeros),
        ("m.scales", FileDtype::F16, vec![groups, OUTPUTS], scales(groups)),
    ];
    let values = numbers_of("{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemm\"}", &stored);
    for (n, x) in values.iter().enumerate() {
        let o = n / INPUTS;
        let i = n % INPUTS;
        let group = i / (INPUTS / groups);
        assert_eq!(*x, (code(o, i, 4) as f32 - zero(group, o, 4) as f32) * scale(group, o));
    }
}

fn awq_word(of: &dyn Fn(usize) -> u32) -> u32 {
    /// Output index for each position of a word.
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    (0..8).fold(0, |word, place| word | of(ORDER[place]) << (4 * place))
}

#[test]
fn modelopt_scales_multiply_and_squares_may_be_ragged() {
    let codes: Vec<u8> = (0..OUTPUTS * INPUTS / 2).map(|n| (n * 37 % 256) as u8).collect();
    let scales: Vec<u8> = (0..OUTPUTS * INPUTS / 16).map(|n| (n * 5 % 120) as u8).collect();
    let two = 0.375_f32;
    let stored: Stored = vec![
        ("m.weight", FileDtype::U8, vec![OUTPUTS, INPUTS / 2], codes.clone()),
        ("m.weight_scale", FileDtype::F8E4m3, vec![OUTPUTS, INPUTS / 16], scales.clone()),
        ("m.weight_scale_2", FileDtype::F32, vec![], two.to_le_bytes().to_vec()),
        ("m.input_scale", FileDtype::F32, vec![], 1.0_f32.to_le_bytes().to_vec()),
    ];
    let values = numbers_of("{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}", &stored);
    for (n, x) in values.iter().enumerate() {
        let code = numbers::f4_e2m1_to_f32(codes[n / 2] >> (n % 2 * 4));
        assert_eq!(*x, code * (numbers::f8_e4m3_to_f32(scales[n / 16]) * two), "{n}");
    }
    let codes: Vec<u8> = (0..OUTPUTS * INPUTS).map(|n| (n * 3 % 120) as u8).collect();
    let block: Vec<f32> = (0..2 * 3).map(|n| 0.5 + n as f32).collect();
    let bytes = block.iter().flat_map(|x| x.to_le_bytes()).collect();
    let stored: Stored = vec![
        ("m.weight", FileDtype::F8E4m3, vec![OUTPUTS, INPUTS], codes.clone()),
        ("m.weight_scale_inv", FileDtype::F32, vec![2, 3], bytes),
    ];
    let values = numbers_of("{\"quant_method\":\"fp8\",\"weight_block_size\":[12,24]}", &stored);
    for (n, x) in values.iter().enumerate() {
        let scale = block[n / INPUTS / 12 * 3 + n % INPUTS / 24];
        assert_eq!(*x, numbers::f8_e4m3_to_f32(codes[n]) * scale, "{n}");
    }
}

#[test]
fn powers_of_two_that_are_bytes_scale_thirty_two_numbers() {
    let codes = (0..OUTPUTS * INPUTS).map(|n| (n * 37 % 0x7e) as u8).collect();
    let scales = (0..OUTPUTS * 2).map(power).collect();
    let stored: Stored = vec![
        ("m.weight", FileDtype::F8E4m3, vec![OUTPUTS, INPUTS], codes),
        ("m.weight_scale", FileDtype::U8, vec![OUTPUTS, 2], scales),
    ];
    let section = "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MXFP8\"}";
    for (n, x) in numbers_of(section, &stored).into_iter().enumerate() {
        let code = numbers::f8_e4m3_to_f32((n * 37 % 0x7e) as u8);
        let exponent = i32::from(power(n / 32)) - 127;
        assert_eq!(x, code * 2.0_f32.powi(exponent), "{n}");
    }
}

fn power(n: usize) -> u8 {
    (120 + n % 9) as u8
}

/// Returns a checkpoint with two e4m3 modules, which two groups name, with these input settings.
fn rounded(dir: &Path, inputs: [&str; 2], beside: Stored) -> Checkpoint {
    let section = format!(
        "{{\"quant_method\":\"compressed-tensors\",\"config_groups\":{{\"a\":{},\"b\":{}}}}}",
        group_section("a", inputs[0]),
        group_section("b", inputs[1])
    );
    let one = 0.5_f32.to_le_bytes().to_vec();
    let mut stored: Stored = vec![
        ("a.weight", FileDtype::F8E4m3, vec![2, 4], vec![0; 8]),
        ("a.weight_scale", FileDtype::F32, vec![1], one.clone()),
        ("b.weight", FileDtype::F8E4m3, vec![2, 4], vec![0; 8]),
        ("b.weight_scale", FileDtype::F32, vec![1], one),
    ];
    stored.extend(beside);
    stored.sort_by_key(|(name, ..)| *name);
    checkpoint(dir, &section, &stored)
}

fn group_section(name: &str, inputs: &str) -> String {
    format!(
        "{{\"targets\":[\"re:{name}\"],\"weights\":{{\"num_bits\":8,\"type\":\"float\",\
             \"strategy\":\"tensor\"}},\"input_activations\":{inputs}}}"
    )
}

#[test]
fn inputs_are_rounded_as_the_group_of_each_module_says() {
    for (scheme, beside, want) in [
        (
            r#"{"type":"float","dynamic":true,"strategy":"token"}"#,
            vec![],
            (CodeType::E4m3, ScaleSharing::Row),
        ),
        (
            r#"{"type":"float","strategy":"tensor"}"#,
            vec![input_scale(0.5)],
            (CodeType::E4m3, ScaleSharing::Fixed { scale: 0.5, zero: 0.0 }),
        ),
        (
            r#"{"symmetric":false}"#,
            vec![input_scale(0.5), zero_points(vec![0xfd])],
            (eight_bits(false), ScaleSharing::Fixed { scale: 0.5, zero: -3.0 }),
        ),
        // A symmetric scheme has no zero point, even if one is stored.
        (
            "{}",
            vec![input_scale(0.5), zero_points(vec![0xfd])],
            (eight_bits(true), ScaleSharing::Fixed { scale: 0.5, zero: 0.0 }),
        ),
        (
            r#"{"dynamic":true,"strategy":"group","group_size":2}"#,
            vec![],
            (eight_bits(true), ScaleSharing::Group(2)),
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = rounded(dir.path(), ["null", scheme], beside);
        assert_eq!(checkpoint.rounding("a.weight").unwrap(), None);
        let (codes, shared) = want;
        assert_eq!(checkpoint.rounding("b.weight").unwrap(), Some(Rounding { codes, shared }));
        assert!(checkpoint.rounds_inputs());
    }
}

fn eight_bits(symmetric: bool) -> CodeType {
    CodeType::Integer { bits: 8, symmetric }
}

#[test]
fn scales_of_inputs_have_two_names() {
    let codes = vec![0x38; OUTPUTS * INPUTS];
    for name in ["m.input_scale", "m.activation_scale"] {
        let stored: Stored = vec![
            ("m.weight", FileDtype::F8E4m3, vec![OUTPUTS, INPUTS], codes.clone()),
            ("m.weight_scale_inv", FileDtype::F32, vec![], 0.5_f32.to_le_bytes().to_vec()),
            (name, FileDtype::F32, vec![], 0.25_f32.to_le_bytes().to_vec()),
        ];
        let dir = tempfile::tempdir().unwrap();
        let section =
            r#"{"quant_method":"fp8","activation_scheme":"static","weight_block_size":null}"#;
        let checkpoint = checkpoint(dir.path(), section, &stored);
        assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["m.weight"]);
        let shared = ScaleSharing::Fixed { scale: 0.25, zero: 0.0 };
        let want = Some(Rounding { codes: CodeType::E4m3, shared });
        assert_eq!(checkpoint.rounding("m.weight").unwrap(), want, "{name}");
    }
}

#[test]
fn inputs_that_lie_are_refused_where_they_are_asked_for() {
    for (scheme, beside, fault) in [
        (r#"{"symmetric":true}"#, vec![], "no `b.input_scale` beside it"),
        (r#"{"symmetric":true}"#, vec![input_scale(0.0)], "one number above 0"),
        (r#"{"symmetric":true}"#, vec![input_scale(f32::NAN)], "one number above 0"),
        (r#"{"symmetric":false}"#, vec![input_scale(1.0)], "no `b.input_zero_point` beside it"),
        (
            r#"{"symmetric":false}"#,
            vec![input_scale(1.0), zero_points(vec![1, 2])],
            "one integer from -128 to 127",
        ),
        (
            r#"{"symmetric":false}"#,
            vec![
                input_scale(1.0),
                ("b.input_zero_point", FileDtype::I32, vec![1], vec![0, 1, 0, 0]),
            ],
            "one integer from -128 to 127",
        ),
        (
            r#"{"dynamic":true,"strategy":"group","group_size":3}"#,
            vec![],
            "a multiple of `group_size`, which is 3",
        ),
        (r#"{"num_bits":4,"type":"float","dynamic":true,"strategy":"token"}"#, vec![], "of 2 to 8"),
        (r#""W8A8""#, vec![], "input_activations of `b`"),
        (r#"null,"output_activations":{"num_bits":8}"#, vec![], "output_activations"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = rounded(dir.path(), ["null", scheme], beside);
        // Weights are read all the same.
        assert!(checkpoint.flow("b.weight").unwrap().numeric().is_ok());
        let error = checkpoint.rounding("b.weight").unwrap_err().to_string();
        assert!(error.contains(fault), "{scheme}: {error}");
    }
}

fn zero_points(zeros: Vec<u8>) -> (&'static str, FileDtype, Vec<usize>, Vec<u8>) {
    ("b.input_zero_point", FileDtype::I8, vec![zeros.len()], zeros)
}

fn input_scale(x: f32) -> (&'static str, FileDtype, Vec<usize>, Vec<u8>) {
    ("b.input_scale", FileDtype::F32, vec![1], x.to_le_bytes().to_vec())
}
