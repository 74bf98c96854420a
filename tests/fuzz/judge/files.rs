//! Judges of tensor formats: an accepted file is read completely, written again, and reads the same.

use std::path::Path;

use checkpoints::checkpoint::Checkpoint;
use formats::gguf::{DimsStyle, GgufFile, GgufHeader, GgufLayout, GgufTensorSpec};
use formats::imatrix::{Imatrix, PartialImatrix};
use formats::safetensors::{self, Writer};

use super::{Judged, Trial, refused};
use crate::program::message;

/// Judges a safetensors file.
pub(crate) fn safetensors(trial: &Trial<'_>) -> Judged {
    let path = trial.dir.join("model.safetensors");
    let bytes = &trial.case.files["model.safetensors"];
    let parsed = safetensors::SafetensorsHeader::from_bytes(&path, bytes);
    let opened = safetensors::SafetensorsFile::open(&path);
    if trial.case.grown.is_some() {
        return checkpoint(trial);
    }
    let (header, file) = match (parsed, opened) {
        (Ok(header), Ok(file)) => (header, file),
        (Err(one), Err(other)) if one.to_string() == other.to_string() => {
            return refused(&one.to_string());
        }
        (one, other) => return Err(format!("in memory {one:?}, on the disk {other:?}")),
    };
    if file.header() != &header {
        return Err("the header in memory is not the one on the disk".to_owned());
    }
    let mut order: Vec<_> = header.tensors.iter().collect();
    order.sort_by_key(|(_, entry)| entry.range);
    let declared: Vec<_> = order
        .iter()
        .map(|(name, entry)| safetensors::TensorSpec {
            name: (*name).clone(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
        })
        .collect();
    let again = trial.beside("again.safetensors");
    let wrote = |error: safetensors::Error| format!("what was read cannot be written: {error}");
    let mut writer = Writer::create(&again, &header.metadata, &declared).map_err(wrote)?;
    for (name, _) in &order {
        let (_, bytes) = file.tensor(name).map_err(wrote)?.ok_or("a tensor is gone")?;
        writer.write(name, bytes).map_err(wrote)?;
    }
    writer.finish().map_err(wrote)?;
    let second = safetensors::SafetensorsFile::open(&again).map_err(wrote)?;
    for (name, entry) in &header.tensors {
        let (written, bytes) = second.tensor(name).map_err(wrote)?.ok_or("a tensor is gone")?;
        let (_, expected) = file.tensor(name).map_err(wrote)?.ok_or("a tensor is gone")?;
        if bytes != expected || written.shape != entry.shape || written.dtype != entry.dtype {
            return Err(format!("tensor `{name}` is another one after it was written"));
        }
    }
    if second.header().metadata != header.metadata {
        return Err("the metadata is another after it was written".to_owned());
    }
    checkpoint(trial)
}

/// Judges a folder of safetensors, reading every value.
pub(crate) fn checkpoint(trial: &Trial<'_>) -> Judged {
    match read_all(trial.dir) {
        Ok(()) => Ok(true),
        Err(text) => refused(&text),
    }
}

/// Opens a checkpoint and reads all its values.
pub(crate) fn read_all(dir: &Path) -> Result<(), String> {
    let text = |error: checkpoints::checkpoint::Error| error.to_string();
    let checkpoint = Checkpoint::open(dir).map_err(text)?;
    checkpoint.fingerprint().map_err(text)?;
    let mut buffer = vec![0.0; 4096];
    for (name, info) in checkpoint.tensors() {
        checkpoint.scan_nonfinite(name).map_err(text)?;
        std::hint::black_box(checkpoint.packed(name));
        // Integers and booleans are not used in computations.
        let flow = checkpoint.flow(name).map_err(text)?;
        if flow.numeric().is_err() {
            continue;
        }
        assert_eq!(flow.shape(), info.shape, "a tensor has the shape it is listed with");
        let mut at = 0;
        while at < flow.len() {
            let count = buffer.len().min(flow.len() - at);
            flow.read(at, &mut buffer[..count]);
            at += count;
        }
    }
    Ok(())
}

/// Judges a GGUF file.
pub(crate) fn gguf(trial: &Trial<'_>) -> Judged {
    let path = trial.dir.join("model.gguf");
    let bytes = &trial.case.files["model.gguf"];
    let header = match GgufHeader::parse(&path, bytes) {
        Ok(header) => header,
        Err(error) => return refused(&error.to_string()),
    };
    for info in &header.tensors {
        let expected_bytes = info.elements() / info.ty.elements() as u64 * info.ty.bytes() as u64;
        let end = info.offset.checked_add(info.bytes).ok_or("a range overflows")?;
        if info.offset < header.data_start
            || end > bytes.len() as u64
            || expected_bytes != info.bytes
        {
            return Err(format!("tensor {info:?} does not lie in the file"));
        }
    }
    let opened = GgufFile::open(&path);
    match &opened {
        // Duplicate names, or a part of a set whose other files are missing.
        Err(error) => return refused(&error.to_string()),
        Ok(file) => numbers(file)?,
    }
    let wrote = |error: formats::gguf::Error| format!("what was read is not laid out: {error}");
    let mut again = layout(&header).map_err(wrote)?;
    let first = again.clone();
    again.header.resize(again.file_len as usize, 0);
    let second = GgufHeader::parse(&path, &again.header).map_err(wrote)?;
    if layout(&second).map_err(wrote)? != first {
        return Err("the header is another after it was written".to_owned());
    }
    if trial.sometimes(10) {
        trial.program.command(&["show", &trial.path("model.gguf"), "--json"])?;
        trial.program.command(&["show", &trial.path("model.gguf")])?;
        trial.program.command(&["convert", "merge-check", &trial.path("model.gguf")])?;
    }
    Ok(true)
}

fn layout(header: &GgufHeader) -> Result<GgufLayout, formats::gguf::Error> {
    let tensors: Vec<GgufTensorSpec> = header.tensors.iter().map(GgufTensorSpec::from).collect();
    GgufLayout::new(Path::new("x"), &header.metadata, &tensors, DimsStyle::AsGiven)
}

/// Decodes some of every tensor.
fn numbers(file: &GgufFile) -> Result<(), String> {
    for info in file.tensors() {
        let bytes = file.bytes(&info.name).ok_or("a tensor without bytes")?;
        if let Err(error) = formats::codec::validate(info.ty, bytes) {
            message(&error.to_string())?;
            continue;
        }
        let block = info.ty.elements();
        let size = info.ty.bytes();
        let blocks = (bytes.len() / size).min(4);
        let mut out = vec![0.0; blocks * block];
        if let Err(error) = formats::codec::decode(info.ty, &bytes[..blocks * size], &mut out) {
            message(&error.to_string())?;
        }
    }
    Ok(())
}

/// Judges the files of a split set, or of a folder of shards.
pub(crate) fn set(trial: &Trial<'_>) -> Judged {
    let first = trial.case.files.keys().find(|name| name.contains("00001-of-"));
    let is_gguf = first.is_some_and(|name| Path::new(name).extension() == Some("gguf".as_ref()));
    let path = match first {
        Some(name) if is_gguf => trial.path(name),
        _ => trial.dir.display().to_string(),
    };
    let ran = trial.program.command(&["convert", "merge-check", &path])?;
    if ran.code != 0 {
        return Ok(false);
    }
    if is_gguf {
        let file =
            GgufFile::open(Path::new(&path)).map_err(|error| format!("complete, but {error}"))?;
        numbers(&file)?;
    } else {
        read_all(trial.dir).map_err(|error| format!("complete, but {error}"))?;
    }
    Ok(true)
}

/// Judges a shard of an importance matrix: its sums survive a round trip, or it is refused.
pub(crate) fn imatrix_shard(trial: &Trial<'_>) -> Judged {
    let name = trial.case.files.keys().next().ok_or("a case has a file")?;
    let path = trial.dir.join(name);
    let read = match PartialImatrix::read(&path) {
        Ok(read) => read,
        Err(error) => return refused(&error.to_string()),
    };
    let shards = trial.program.made.join("imatrix-shard");
    let mut sound = ["dense", "experts"].into_iter().map(|name| shards.join(name).join("im.gguf"));
    if !sound.any(|path| PartialImatrix::read(&path).is_ok_and(|sound| sound == read)) {
        return Err("other sums than were measured are accepted".to_owned());
    }
    let again = trial.beside("again.shard");
    if let Err(error) = read.write(&again) {
        return refused(&error.to_string());
    }
    let second =
        PartialImatrix::read(&again).map_err(|e| format!("written, and cannot be read: {e}"))?;
    if read != second {
        return Err("the sums are others after they were written".to_owned());
    }
    match PartialImatrix::join(&[path]) {
        Ok(_) => Ok(true),
        Err(error) => refused(&error.to_string()),
    }
}

/// Returns names, sizes and counts of an importance matrix.
fn counts(matrix: &Imatrix) -> Vec<(String, usize, Vec<u64>)> {
    matrix
        .entries
        .iter()
        .map(|(name, entry): (&String, &formats::imatrix::ImportanceEntry)| {
            (name.clone(), entry.means().len(), entry.counts().to_vec())
        })
        .collect()
}

/// Judges an importance matrix of either format.
pub(crate) fn imatrix(trial: &Trial<'_>) -> Judged {
    let name = trial.case.files.keys().next().ok_or("a case has a file")?;
    let read = match Imatrix::read(&trial.dir.join(name)) {
        Ok(read) => read,
        Err(error) => return refused(&error.to_string()),
    };
    for (name, entry) in &read.entries {
        if !entry.means().iter().all(|mean| mean.is_finite() && *mean >= 0.0) {
            return Err(format!("`{name}` has a mean that is none"));
        }
    }
    let again = trial.beside("again.gguf");
    // Names and sizes that GGUF cannot express are rejected.
    if let Err(error) = read.write(&again) {
        return refused(&error.to_string());
    }
    let second = Imatrix::read(&again).map_err(|e| format!("written, and cannot be read: {e}"))?;
    // Counts are written as f32.
    let small = read.entries.values().all(|e| e.counts().iter().all(|count| *count < 1 << 24));
    if small && counts(&read) != counts(&second) {
        return Err("the matrix is another after it was written".to_owned());
    }
    Ok(true)
}
