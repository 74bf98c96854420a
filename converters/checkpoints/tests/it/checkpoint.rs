//! Tests of checkpoints on disk: one file, shards, links, fingerprints, random weights.

use std::collections::BTreeMap;
use std::path::Path;

use formats::numbers;
use formats::safetensors::{FileDtype, TensorSpec, Writer};
use onboard_checkpoints::Checkpoint;
use onboard_checkpoints::checkpoint::{Error, INDEX, SINGLE};
use onboard_checkpoints::random::write_random_checkpoint;

fn weights() -> Vec<(String, Vec<usize>)> {
    [
        ("model.embed.weight", vec![64, 32]),
        ("model.norm.weight", vec![32]),
        ("model.norm.bias", vec![32]),
        ("model.big.weight", vec![700, 800]),
        ("model.none.weight", vec![0, 4]),
        ("model.scalar", vec![]),
    ]
    .map(|(name, shape)| (name.to_owned(), shape))
    .to_vec()
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let info = checkpoint.info(name).expect("a tensor of this checkpoint");
    let mut out = vec![0.0; info.elements()];
    let bytes = checkpoint.bytes(name).expect("its bytes");
    numbers::to_f32(info.dtype, bytes, &mut out).expect("a float");
    out
}

fn moments(values: &[f32]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().map(|&v| v as f64).sum::<f64>() / count;
    let variance = values.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

#[test]
fn random_weights_look_like_weights() {
    let dir = tempfile::tempdir().unwrap();
    let files =
        write_random_checkpoint(dir.path(), &weights(), FileDtype::F32, 1, u64::MAX).unwrap();
    assert_eq!(files, [dir.path().join(SINGLE)]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.tensors().len(), 6);
    assert_eq!(checkpoint.total_bytes(), 4 * (64 * 32 + 32 + 32 + 700 * 800 + 1));
    let (mean, std) = moments(&values(&checkpoint, "model.big.weight"));
    assert!(mean.abs() < 1e-3 && (std - 0.0353).abs() < 1e-3, "{mean} {std}");
    let (mean, std) = moments(&values(&checkpoint, "model.norm.weight"));
    assert!((mean - 1.0).abs() < 0.1 && (0.03..0.2).contains(&std), "{mean} {std}");
    let (mean, _) = moments(&values(&checkpoint, "model.norm.bias"));
    assert!(mean.abs() < 0.1, "{mean}");
    for name in checkpoint.tensors().keys() {
        assert_eq!(checkpoint.scan_nonfinite(name).unwrap(), None);
    }
}

#[test]
fn random_bytes_depend_on_the_seed_and_not_on_threads_or_shards() {
    let (one, dir) = random_checkpoint(1, 7, u64::MAX);
    let (five, other) = random_checkpoint(5, 7, u64::MAX);
    assert_eq!(one, five);
    let [bytes, other_bytes] =
        [&dir, &other].map(|dir| fs_err::read(dir.path().join(SINGLE)).unwrap());
    assert!(bytes == other_bytes);
    let (sharded, dir) = random_checkpoint(2, 7, 100_000);
    assert_eq!(one, sharded);
    assert!(dir.path().join(INDEX).exists() && !dir.path().join(SINGLE).exists());
    assert_eq!(Checkpoint::open(dir.path()).unwrap().files().len(), 3);
    assert_ne!(one, random_checkpoint(1, 8, u64::MAX).0);
    // Pinned: another machine writes the same bytes.
    assert_eq!(one, "d2dfcaf0bf2f007914f7be758488f2b05fdfeebda50d4b599109050143a6dc9c");
}

fn random_checkpoint(threads: usize, seed: u64, shard_bytes: u64) -> (String, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        write_random_checkpoint(dir.path(), &weights(), FileDtype::Bf16, seed, shard_bytes)
    })
    .unwrap();
    let fingerprint = Checkpoint::open(dir.path()).unwrap().fingerprint().unwrap();
    (fingerprint, dir)
}

#[test]
fn the_fingerprint_is_that_of_the_reference_script() {
    // Long enough for windows; computed with Python's hashlib from the description in docs/dump.md.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SINGLE);
    let tensors = [("b", vec![3, 700_001], FileDtype::Bf16), ("a.é", vec![], FileDtype::F32)]
        .map(|(name, shape, dtype)| TensorSpec { name: name.into(), dtype, shape });
    let mut writer = Writer::create(&path, &BTreeMap::new(), &tensors).unwrap();
    let bytes: Vec<u8> = (0..4_200_006_u32).map(|i| (i.wrapping_mul(i) % 251) as u8).collect();
    writer.write("b", &bytes).unwrap();
    writer.write("a.é", &[1, 2, 3, 4]).unwrap();
    writer.finish().unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(
        checkpoint.fingerprint().unwrap(),
        "03bbaff0e54a38013b838d4a360eeef25d22d03b856200a581b3e98d7941a886"
    );
}

#[test]
fn a_dtype_that_is_not_written_is_refused_before_a_file_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let error = write_random_checkpoint(&out, &weights(), FileDtype::I32, 0, 1).unwrap_err();
    assert!(error.to_string().contains("`I32`"), "{error}");
    assert!(!out.exists());
}

#[test]
fn a_new_checkpoint_replaces_one_of_the_other_kind() {
    let dir = tempfile::tempdir().unwrap();
    let counts = [u64::MAX, 100_000, u64::MAX].map(|shard_bytes| {
        write_random_checkpoint(dir.path(), &weights(), FileDtype::F16, 3, shard_bytes).unwrap();
        Checkpoint::open(dir.path()).unwrap().files().len()
    });
    assert_eq!(counts, [1, 3, 1]);
}

#[test]
fn a_single_file_and_a_lone_shard_open_too() {
    let dir = tempfile::tempdir().unwrap();
    let files = write_random_checkpoint(dir.path(), &weights(), FileDtype::F32, 1, 4096).unwrap();
    let checkpoint = Checkpoint::open(&files[0]).unwrap();
    assert_eq!(checkpoint.files(), [files[0].clone()]);
    assert_eq!(checkpoint.root(), files[0]);
    let error = checkpoint.bytes("model.big.weight").unwrap_err();
    assert!(matches!(error, Error::NoTensor { .. }));
    assert!(matches!(Checkpoint::open(&dir.path().join("none")), Err(Error::Io(_))));
}

#[cfg(unix)]
mod links {
    use std::os::unix::fs::symlink;

    use super::*;

    fn sharded(dir: &Path) -> Vec<std::path::PathBuf> {
        write_random_checkpoint(dir, &weights(), FileDtype::F32, 1, 4096).expect("written")
    }

    #[test]
    fn a_shard_that_is_a_link_out_of_the_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let files = sharded(dir.path());
        let away = other.path().join("away");
        fs_err::rename(&files[1], &away).unwrap();
        symlink(&away, &files[1]).unwrap();
        let error = Checkpoint::open(dir.path()).unwrap_err();
        assert!(
            matches!(&error, Error::ShardOutside { shard, .. } if *shard == files[1]),
            "{error}"
        );
        // A link that stays inside is fine, and so is a linked folder.
        fs_err::remove_file(&files[1]).unwrap();
        fs_err::rename(&away, dir.path().join("blob")).unwrap();
        symlink("blob", &files[1]).unwrap();
        symlink(dir.path(), other.path().join("folder")).unwrap();
        Checkpoint::open(&other.path().join("folder")).unwrap();
        // A link to nowhere is a missing shard.
        fs_err::remove_file(dir.path().join("blob")).unwrap();
        let error = Checkpoint::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::MissingShard { .. }));
    }

    #[test]
    fn the_links_of_a_download_cache_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = dir.path().join("snapshots/0123");
        let blobs = dir.path().join("blobs");
        let files = sharded(&snapshot);
        fs_err::create_dir(&blobs).unwrap();
        for (index, file) in files.iter().enumerate() {
            fs_err::rename(file, blobs.join(index.to_string())).unwrap();
            symlink(format!("../../blobs/{index}"), file).unwrap();
        }
        assert_eq!(Checkpoint::open(&snapshot).unwrap().tensors().len(), 6);
        fs_err::rename(blobs.join("0"), dir.path().join("elsewhere")).unwrap();
        fs_err::remove_file(&files[0]).unwrap();
        symlink("../../elsewhere", &files[0]).unwrap();
        let error = Checkpoint::open(&snapshot).unwrap_err();
        assert!(matches!(error, Error::ShardOutside { .. }));
    }
}

#[test]
fn shards_of_two_conversions_are_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let index = r#"{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}"#;
    fs_err::write(dir.path().join(INDEX), index).unwrap();
    for (a, b, fits) in [
        (None, None, true),
        (Some("x"), Some("x"), true),
        (Some("x"), Some("y"), false),
        (Some("x"), None, false),
        (None, Some("x"), false),
    ] {
        write_shard(dir.path(), "a", a);
        write_shard(dir.path(), "b", b);
        let opened = Checkpoint::open(dir.path());
        assert_eq!(opened.is_ok(), fits, "{a:?} {b:?}");
        assert!(matches!(opened, Ok(_) | Err(Error::Sets { .. })));
    }
}

fn write_shard(dir: &Path, name: &str, made_of: Option<&str>) {
    let shape = vec![1];
    let declared = TensorSpec { name: name.to_owned(), dtype: FileDtype::U8, shape };
    let metadata = made_of.map(|text| ("onboard.set".to_owned(), text.to_owned()));
    let path = dir.join(format!("{name}.safetensors"));
    let mut writer = Writer::create(&path, &metadata.into_iter().collect(), &[declared]).unwrap();
    writer.write(name, &[1]).unwrap();
    writer.finish().unwrap();
}
