//! Observers of conversions: remarks, results, progress, and unfinished files.

use std::any::Any;
use std::io;
use std::path::Path;

use conversion::Progress;
use registry::diag::Finding;

/// Observer of a conversion, a measurement or a verification.
///
/// The library never prints. It hands remarks, results and progress to an observer, in the order in which they arise.
/// Every method has a default that does nothing, so `()` is the silent observer.
///
/// ```
/// use std::sync::Mutex;
///
/// use onboard_converter::ConversionObserver;
///
/// struct Remarks(Mutex<Vec<String>>);
///
/// impl ConversionObserver for Remarks {
///     fn note(&self, text: &str) {
///         self.0.lock().unwrap().push(text.to_owned());
///     }
/// }
///
/// let remarks = Remarks(Mutex::default());
/// remarks.note("warning: the file has no tokenizer");
/// assert_eq!(remarks.0.lock().unwrap().len(), 1);
/// ```
pub trait ConversionObserver: Sync {
    /// Takes a remark: a note or a warning.
    fn note(&self, _text: &str) {}

    /// Takes findings of a spec that do not stop the conversion.
    fn findings(&self, _findings: &[Finding]) {}

    /// Takes a text that the caller wanted: a plan, a summary, a comparison. An error stops the conversion.
    fn print(&self, _text: &str) -> io::Result<()> {
        Ok(())
    }

    /// Begins a count of things. The end of the returned value ends it.
    fn count(&self, _length: u64, _noun: &'static str) -> Box<dyn Progress> {
        Box::new(())
    }

    /// Takes the path of an unfinished file, or of a folder that is removed with all its contents. The end of the
    /// returned value says that nothing is unfinished any more.
    fn unfinished(&self, _path: &Path, _with_contents: bool) -> Box<dyn Any> {
        Box::new(())
    }

    /// Takes the words that tell how an interrupted run is resumed; empty if there is nothing to resume.
    fn resumable(&self, _hint: &'static str) {}

    /// Takes the path of a file that was written and published.
    fn product(&self, _path: &Path) {}
}

impl ConversionObserver for () {}
