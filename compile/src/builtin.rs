//! Files of targets that the crate carries.

include!(concat!(env!("OUT_DIR"), "/builtin.rs"));
