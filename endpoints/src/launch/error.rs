//! Errors of launches.

/// Reason why a launch cannot be planned, written or compared with a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The engine has no container image.
    #[error(
        "the sheet of `{engine}` names no `image`; choose the option `as text` or the option `as systemd`"
    )]
    Image {
        /// Name of the engine.
        engine: String,
    },
    /// The engine has no port.
    #[error("the sheet of `{engine}` names no `port`")]
    Port {
        /// Name of the engine.
        engine: String,
    },
    /// Nothing says where a server reports its settings.
    #[error(
        "the sheet of `{engine}` has no `reports`: nothing says where a server tells what is in force"
    )]
    Reports {
        /// Name of the engine.
        engine: String,
    },
    /// A setting has no value.
    #[error("the option `set {0}` has no `=`; write the option `set KEY=VALUE`")]
    Value(String),
    /// The engine has no such setting.
    #[error("engine `{engine}` has no setting `{key}`{help}")]
    Setting {
        /// Name of the engine.
        engine: String,
        /// Name of the setting.
        key: String,
        /// Nearest name, or all names.
        help: String,
    },
    /// A setting is given more than once.
    #[error("setting `{0}` is given twice")]
    Repeated(String),
    /// The value of a setting cannot be used.
    #[error(transparent)]
    Reading(#[from] registry::sheet::SettingError),
    /// The version of the engine cannot be read.
    #[error("`{0}` is no version; expected numbers with dots, like 0.5.23")]
    Version(String),
    /// The size of a GPU's memory cannot be read.
    #[error("`{0}` is no size of a GPU's memory; expected 16GB or 24564MiB")]
    Size(String),
    /// The server gave no usable response.
    #[error(transparent)]
    Server(#[from] crate::Error),
}
