//! Kernels as PTX: compiled by NVRTC, and kept in a folder.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nvrtc;
use registry::file;

use crate::DeviceError;
use crate::device::source;

/// Largest size of a compiled file.
const COMPILED: u64 = 64 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Keeps compiled kernels in a folder, from the first call on. Without it they are compiled at each start.
pub fn keep_compiled_in(folder: &Path) {
    FOLDER.get_or_init(|| folder.to_owned());
}

pub(super) fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Returns the kernels for a compute capability as PTX that ends with a zero: kept ones, or compiled now.
pub(super) fn compiled(capability: (i32, i32), newest: i32) -> Result<Vec<u8>, DeviceError> {
    // SAFETY: looks for the library alone.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(DeviceError(format!(
            "NVRTC (libnvrtc.so) was not found; the driver runs CUDA {}: install the CUDA toolkit, or `pip install \
             nvidia-cuda-nvrtc` of that version and add its folder to LD_LIBRARY_PATH",
            version(newest)
        )));
    }
    let mut major = 0;
    let mut minor = 0;
    // SAFETY: writes two numbers.
    unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .map_err(|error| DeviceError(format!("NVRTC: {error}")))?;
    let compiler = major * 1000 + minor * 10;
    if compiler > newest {
        return Err(DeviceError(format!(
            "NVRTC is of CUDA {}, and the driver runs code of CUDA {} at most; update the driver, or install NVRTC \
             of that version",
            version(compiler),
            version(newest)
        )));
    }
    let text = source::text();
    let target = format!("--gpu-architecture=compute_{}{}", capability.0, capability.1);
    let options = source::OPTIONS.join(" ");
    let key = hash(&format!("{text}\n{target} {options} {compiler}"));
    let path = FOLDER.get().map(|folder| folder.join(format!("{key:016x}.ptx")));
    if let Some(code) = path.as_deref().and_then(kept) {
        return Ok(ended(code));
    }
    let options = [&[target.as_str()], &source::OPTIONS[..]].concat();
    let code = compile(&text, &options)?;
    if let Some(path) = path {
        // A folder that cannot be written costs time at the next start, and nothing else.
        keep(&path, &code).unwrap_or_default();
    }
    Ok(ended(code))
}

fn ended(code: String) -> Vec<u8> {
    let mut code = code.into_bytes();
    code.push(0);
    code
}

/// Compiles source text to PTX.
fn compile(text: &str, options: &[&str]) -> Result<String, DeviceError> {
    use nvrtc::result::{
        compile_program, create_program, destroy_program, get_program_log, get_ptx,
    };
    let text = CString::new(text).map_err(|_| DeviceError("the source has a zero".to_owned()))?;
    let program = create_program(&text, Some(c"onboard.cu")).map_err(failed)?;
    // SAFETY: the program was created above, and is destroyed once at the end.
    unsafe {
        let code = match compile_program(program, options) {
            Ok(()) => get_ptx(program).map(text_of).map_err(failed),
            Err(error) => {
                let log = get_program_log(program).map(text_of).unwrap_or_default();
                Err(DeviceError(format!("NVRTC: {error}: {log}")))
            }
        };
        destroy_program(program).map_err(failed)?;
        code
    }
}

fn failed(error: nvrtc::result::NvrtcError) -> DeviceError {
    DeviceError(format!("NVRTC: {error}"))
}

/// Returns the text of the library's characters, which end with a zero.
fn text_of(bytes: Vec<c_char>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().map(|c| c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// FNV-1a, for names of kept files and to notice damaged ones.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads kept code; none if there is none, or it is damaged.
fn kept(path: &Path) -> Option<String> {
    let limit = file::FileLimit { kind: "compiled kernels", bytes: COMPILED };
    let text = file::read_text(path, limit).ok()?;
    let (first, code) = text.split_once('\n')?;
    (first == format!("// {:016x}", hash(code))).then(|| code.to_owned())
}

/// Writes code whole or not at all.
fn keep(path: &Path, code: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs_err::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    fs_err::write(&beside, format!("// {:016x}\n{code}", hash(code)))?;
    fs_err::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_code_comes_back_and_damaged_code_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/a.ptx");
        assert_eq!(kept(&path), None);
        keep(&path, "one\ntwo").unwrap();
        assert_eq!(kept(&path).as_deref(), Some("one\ntwo"));
        fs_err::write(&path, fs_err::read_to_string(&path).unwrap().replace("two", "tow")).unwrap();
        assert_eq!(kept(&path), None);
    }
}
