//! The orientation in EXIF data, as Pillow's `exif_transpose` finds it.

/// Tag of the orientation.
const ORIENTATION: u16 = 0x0112;
/// Type of a number of 16 bits.
const SHORT: u16 = 3;
/// Most entries of a directory that are looked at.
const MAX_ENTRIES: u16 = 4096;

/// Reads numbers in the byte order of a TIFF header.
struct TiffBytes<'b> {
    bytes: &'b [u8],
    big: bool,
}

impl TiffBytes<'_> {
    fn short(&self, at: usize) -> Option<u16> {
        let pair = self.bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if self.big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
    }

    fn long(&self, at: usize) -> Option<u32> {
        let four = self.bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) })
    }
}

/// Returns the orientation from 1 to 8; 1 if the data has none.
pub(super) fn orientation(exif: &[u8]) -> u8 {
    let bytes = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    entry(bytes)
        .and_then(|value| u8::try_from(value).ok())
        .filter(|n| (1..=8).contains(n))
        .unwrap_or(1)
}

fn entry(bytes: &[u8]) -> Option<u16> {
    let big = match bytes.get(..4)? {
        b"MM\0*" => true,
        b"II*\0" => false,
        _ => return None,
    };
    let tiff = TiffBytes { bytes, big };
    let directory = usize::try_from(tiff.long(4)?).ok()?;
    let count = tiff.short(directory)?.min(MAX_ENTRIES);
    for n in 0..usize::from(count) {
        let at = directory.checked_add(2 + 12 * n)?;
        if tiff.short(at)? == ORIENTATION && tiff.short(at + 2)? == SHORT {
            return tiff.short(at + 8);
        }
    }
    None
}
