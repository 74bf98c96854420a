//! The orientation in EXIF data, as Pillow's `exif_transpose` finds it.

/// Tag of the orientation.
const ORIENTATION: u16 = 0x0112;
/// Type of a number of 16 bits.
const SHORT: u16 = 3;
/// Type of a number of 32 bits.
const LONG: u16 = 4;
/// Name of the orientation in XMP data.
const XMP: &[u8] = b"tiff:Orientation";
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

/// Returns the orientation from 1 to 8, of EXIF data or else of XMP data; 1 if neither has one.
pub(super) fn orientation(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> u8 {
    let stated = exif.and_then(|data| entry(data.strip_prefix(b"Exif\0\0").unwrap_or(data)));
    let stated = stated.or_else(|| xmp.and_then(xmp_entry));
    let number = stated.and_then(|number| u8::try_from(number).ok());
    number.filter(|number| (1..=8).contains(number)).unwrap_or(1)
}

/// Returns the digit behind `tiff:Orientation`, as an attribute or as an element.
fn xmp_entry(xmp: &[u8]) -> Option<u32> {
    let mut tail = xmp;
    while let Some(at) = tail.windows(XMP.len()).position(|name| name == XMP) {
        tail = &tail[at + XMP.len()..];
        let value = tail.strip_prefix(b"=\"").or_else(|| tail.strip_prefix(b">"));
        if let Some(digit) = value.and_then(|value| value.first()).filter(|c| c.is_ascii_digit()) {
            return Some(u32::from(digit - b'0'));
        }
    }
    None
}

/// Returns the number of the orientation in the first directory.
fn entry(bytes: &[u8]) -> Option<u32> {
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
        if tiff.short(at)? == ORIENTATION {
            return match tiff.short(at + 2)? {
                SHORT => tiff.short(at + 8).map(u32::from),
                LONG => tiff.long(at + 8),
                _ => None,
            };
        }
    }
    None
}
