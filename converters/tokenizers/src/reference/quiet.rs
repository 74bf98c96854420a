//! Calls that may panic, with the panic message kept off the terminal.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use formats::shown;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of the library. A panic becomes an error with its message, and is not printed.
pub(crate) fn call<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    // State that a panic left inconsistent is not used again: the error ends the run.
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(outer);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        format!("the library failed ({})", shown(text.unwrap_or("no reason given")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(call(|| 1 + 1), Ok(2));
        let text = String::from("x");
        assert_eq!(call(|| panic!("of {text}")), Err::<(), _>("the library failed (of x)".into()));
        assert!(!QUIET.get());
    }
}
