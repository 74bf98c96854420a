//! The launch of kernels: what does not fit is refused before it runs.

use libtest_mimic::Trial;
use onboard_engine::device::{DeviceBuffer, DeviceQueue, KernelArgument, KernelParts, count};
use registry::dtype::Dtype;

use crate::{emulation, trials};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trials::one("kernels::arguments", wrong_arguments_are_refused),
        trials::one("kernels::parts", parts_have_arguments_and_blocks_of_their_own),
        trials::one("kernels::numbers", sixteen_bits_are_those_of_the_engine),
        trials::one("kernels::ties", among_equals_the_first_are_selected),
    ]
}

fn wrong_arguments_are_refused() {
    let queue = emulation::device(false);
    let x = queue.upload(&[0; 16]).unwrap();
    let sound: [KernelArgument; 6] =
        [(&x).into(), Dtype::F32.into(), 2.0.into(), (&x).into(), Dtype::F32.into(), count(4)];
    queue.launch("softcap", 1, &sound).unwrap();
    for (kernel, arguments) in [
        ("softcap", &sound[..5]),
        ("softcap", &[sound[0], sound[0], sound[2], sound[3], sound[4], sound[5]]),
        ("hardcap", &sound),
    ] {
        let why = queue.launch(kernel, 1, arguments).unwrap_err().to_string();
        assert!(why.contains(&format!("no kernel `{kernel}` takes")), "{why}");
    }
    let why = queue.launch("softcap", usize::MAX, &sound).unwrap_err().to_string();
    assert!(why.contains("feed fewer tokens at once"), "{why}");
    for outside in [x.read(8, 9), x.read(usize::MAX, 2)] {
        assert!(outside.unwrap_err().to_string().contains("of 16 bytes"));
    }
    assert!(x.write(16, &[0]).is_err());
}

fn parts_have_arguments_and_blocks_of_their_own() {
    let queue = emulation::device(false);
    let numbers = vec![1.003_f32; 700];
    let x = queue.upload(&numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    let blocks = [0, 300, 1, 0, 128, 129, 0]
        .map(|size| (size, queue.upload(&x.as_ref().unwrap().read(0, 4 * size).unwrap()).unwrap()));
    let mut launch = KernelParts::new("round_numbers");
    for (n, (size, block)) in blocks.iter().enumerate() {
        launch.push_each(*size, part(block, Dtype::ALL[n % 3], *size));
    }
    queue.launch_parts(&[KernelParts::new("round_numbers"), launch]).unwrap();
    for (n, (size, block)) in blocks.iter().enumerate() {
        let want = onboard_engine::kernels::round::round1(Dtype::ALL[n % 3], 1.003);
        assert_eq!(block.read(0, 4 * size).unwrap(), want.to_le_bytes().repeat(*size), "part {n}");
    }
    let (size, block) = &blocks[1];
    let sound = part(block, Dtype::Bf16, *size);
    let why = queue.launch("round_numbers", 1, &sound).unwrap_err().to_string();
    assert!(why.contains("no kernel `round_numbers` takes"), "{why}");
    for (kernel, arguments) in [("round_numbers", &sound[..2]), ("softcap", &sound)] {
        let mut launch = KernelParts::new(kernel);
        launch.push(1, sound.clone());
        launch.push(1, arguments.to_vec());
        let why = queue.launch_parts(&[launch]).unwrap_err().to_string();
        assert!(why.contains(&format!("no kernel `{kernel}` takes")), "{why}");
    }
    let mut launch = KernelParts::new("round_numbers");
    launch.push(1 << 30, sound.clone());
    launch.push(1 << 30, sound);
    let why = queue.launch_parts(&[launch]).unwrap_err().to_string();
    assert!(why.contains("feed fewer tokens at once"), "{why}");
}

fn part(block: &DeviceBuffer, dtype: Dtype, size: usize) -> Vec<KernelArgument> {
    vec![KernelArgument::from(block), dtype.into(), count(size)]
}

/// Scores of a few values, so that many are equal; NaN is the largest.
fn among_equals_the_first_are_selected() {
    let span = 300_usize;
    let topk = 70_usize;
    let scores: Vec<f32> = (0..span)
        .map(|n| if n == 250 { -f32::NAN } else { [0.0, -1.5, 2.0, -0.0, 0.5][n * n % 97 % 5] })
        .collect();
    let keys: Vec<f32> = scores.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }).collect();
    let mut order: Vec<usize> = (0..span).collect();
    order.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]).then(a.cmp(b)));
    let mut want = order[..topk].to_vec();
    want.sort_unstable();
    for reversed in [false, true] {
        let queue = emulation::device(reversed);
        let from = queue.upload(&scores.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
        let from = from.unwrap();
        let to = queue.allocate(4 * topk).unwrap();
        let [start, span, topk] = [span as u32 - 1, span as u32, topk as u32];
        // Blocks of one position, which are complete.
        let sizes = [0, start, span, 1, topk, 0].map(KernelArgument::from);
        let arguments =
            [&[(&from).into()], &sizes[..], &[(&to).into(), Dtype::F32.into()]].concat();
        let mut select = KernelParts::new("index_select");
        select.push(1, arguments);
        queue.launch_parts(&[select]).unwrap();
        let bytes = to.read(0, to.bytes()).unwrap();
        let numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        assert_eq!(numbers.map(|x| x as usize).collect::<Vec<_>>(), want);
    }
}

/// Every exponent, with mantissas around each half-way point of both grids.
fn sixteen_bits_are_those_of_the_engine() {
    let lows = [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
    let numbers: Vec<f32> =
        (0..=0xffff_u32).flat_map(|top| lows.map(|low| f32::from_bits(top << 16 | low))).collect();
    let queue = emulation::device(false);
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = queue.upload(&bytes).unwrap();
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let narrow = convert(&queue, numbers.len(), Dtype::F32, &x, dtype);
        let bits = narrow.read(0, narrow.bytes()).unwrap();
        let wide = convert(&queue, numbers.len(), dtype, &narrow, Dtype::F32);
        let wide = wide.read(0, wide.bytes()).unwrap();
        for ((x, bits), wide) in numbers.iter().zip(bits.chunks_exact(2)).zip(wide.chunks_exact(4))
        {
            let bits = u16::from_le_bytes([bits[0], bits[1]]);
            let wide = f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]);
            let want = onboard_engine::kernels::round::round1(dtype, *x);
            let stored = onboard_engine::kernels::round::to_bits(dtype, *x);
            if x.is_nan() {
                assert!(wide.is_nan(), "{dtype} of {x:e}");
            } else {
                assert_eq!((bits, wide.to_bits()), (stored, want.to_bits()), "{dtype} of {x:e}");
            }
        }
    }
}

fn convert(
    queue: &DeviceQueue,
    total: usize,
    from: Dtype,
    x: &DeviceBuffer,
    to: Dtype,
) -> DeviceBuffer {
    let y = queue.allocate(total * to.size()).unwrap();
    let arguments = [KernelArgument::from(x), from.into(), (&y).into(), to.into(), count(total)];
    queue.launch_each("convert", total, &arguments).unwrap();
    y
}
