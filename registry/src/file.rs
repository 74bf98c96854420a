//! Files that are read whole: regular files only, and never more than a stated number of bytes.
//!
//! Checkpoints, specs and dumps come from strangers. A named pipe would block the program, a device
//! would fill memory, and the length in a file's metadata need not be the truth.

use std::io::{self, Read as _};
use std::path::Path;

/// Largest file of one kind that is read into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimit {
    /// Name of the kind, with its article.
    pub kind: &'static str,
    /// Most bytes that are read.
    pub bytes: u64,
}

const MIB: u64 = 1 << 20;

/// `config.json` and other settings in JSON.
pub const CONFIG: FileLimit = FileLimit { kind: "a configuration file", bytes: 16 * MIB };
/// Specs, in YAML.
pub const SPEC: FileLimit = FileLimit { kind: "a spec", bytes: crate::yaml::MAX_BYTES as u64 };
/// Manifests of dumps.
pub const MANIFEST: FileLimit = FileLimit { kind: "a manifest", bytes: 64 * MIB };
/// Reports of checks. A gate of a deep model takes some kilobytes.
pub const REPORT: FileLimit = FileLimit { kind: "a report", bytes: 1024 * MIB };
/// Files of a tokenizer. The largest vocabularies in use take 40 MB.
pub const TOKENIZER: FileLimit = FileLimit { kind: "a tokenizer file", bytes: 128 * MIB };
/// Chat templates.
pub const TEMPLATE: FileLimit = FileLimit { kind: "a chat template", bytes: 4 * MIB };
/// Texts that are tokenized, for calibration and importance matrices.
pub const TEXT: FileLimit = FileLimit { kind: "a text", bytes: 64 * MIB };
/// Files that are copied beside converted weights.
pub const COPIED: FileLimit = FileLimit { kind: "a file beside the weights", bytes: 256 * MIB };

/// Opens a regular file. Folders, named pipes, sockets and devices are refused without waiting.
pub fn open(path: &Path) -> io::Result<fs_err::File> {
    // Opening some devices has effects, so the kind is checked before as well as after.
    regular(path, &metadata(path)?)?;
    let mut options = fs_err::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use fs_err::os::unix::fs::OpenOptionsExt as _;
        // A pipe that takes the file's place in between is opened without waiting for a writer.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits();
        options.custom_flags(nonblocking.cast_signed());
    }
    let file = options.open(path)?;
    regular(path, &file.metadata()?)?;
    Ok(file)
}

fn metadata(path: &Path) -> io::Result<std::fs::Metadata> {
    fs_err::metadata(path).map_err(|error| match error.kind() {
        kind @ io::ErrorKind::NotFound => {
            io::Error::new(kind, format!("there is no file `{}`", path.display()))
        }
        _ => error,
    })
}

/// Reads a regular file of at most `limit` bytes.
pub fn read(path: &Path, limit: FileLimit) -> io::Result<Vec<u8>> {
    rest(&mut open(path)?, limit)
}

/// Reads the rest of an open file, which may be of at most `limit` bytes.
pub fn rest(file: &mut fs_err::File, limit: FileLimit) -> io::Result<Vec<u8>> {
    let path = file.path().to_owned();
    let length = file.metadata()?.len();
    if length > limit.bytes {
        return Err(too_long(&path, &size(length), limit));
    }
    // The length only sizes the buffer: what is read decides.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(limit.bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.bytes {
        return Err(too_long(&path, &format!("more than {}", size(limit.bytes)), limit));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `limit` bytes as UTF-8.
pub fn read_text(path: &Path, limit: FileLimit) -> io::Result<String> {
    String::from_utf8(read(path, limit)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!(
            "`{}` is not UTF-8: byte {at} begins no character; save the file as UTF-8",
            path.display()
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn regular(path: &Path, metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let file_kind = kind(metadata.file_type());
    let message = format!(
        "`{}` is {file_kind}, not a regular file; give a file, and save what a pipe says to one first",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

fn kind(kind: std::fs::FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return "a named pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a folder" } else { "of another kind" }
}

fn too_long(path: &Path, length: &str, limit: FileLimit) -> io::Error {
    let message = format!(
        "`{}` has {length}, and {} has at most {}; is it another file?",
        path.display(),
        limit.kind,
        size(limit.bytes)
    );
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} KiB", bytes >> 10),
        10_000_000..100_000_000_000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    const LIMIT: FileLimit = FileLimit { kind: "a trial", bytes: 5 };

    fn message(path: &Path) -> String {
        read(path, LIMIT).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs_err::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, LIMIT).unwrap(), "12345");
        fs_err::write(&path, "123456").unwrap();
        assert_eq!(
            message(&path),
            format!(
                "`{}` has 6 bytes, and a trial has at most 5 bytes; is it another file?",
                path.display()
            )
        );
        fs_err::write(&path, b"ab\xff").unwrap();
        assert!(
            read_text(&path, LIMIT).unwrap_err().to_string().contains("byte 2 begins no character")
        );
        assert!(read(&dir.path().join("none"), LIMIT).is_err());
    }

    #[test]
    fn a_length_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        fs_err::File::create(&path).unwrap().set_len(200_000_000_000).unwrap();
        assert!(message(&path).contains("186 GiB"), "{}", message(&path));
        // Files of the kernel have a length of 0 and more to read.
        assert!(message(Path::new("/proc/self/status")).contains("more than 5 bytes"));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert!(message(&pipe).contains("is a named pipe, not a regular file"));
        assert!(message(Path::new("/dev/zero")).contains("is a device, not a regular file"));
        assert!(message(dir.path()).contains("is a folder, not a regular file"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        assert!(message(&link).contains("is a named pipe"));
    }
}
