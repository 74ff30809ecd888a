//! Finding `libttsp.so` and checking that it is the right one.

use std::ffi::{CStr, c_int};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use crate::abi::{self, Functions};
use crate::device::Handle;
use crate::{Device, DeviceOptions, Error, LoadError};

/// Environment variable with the path of the library, for one that the dynamic loader does not find by itself.
pub const LIBRARY_VARIABLE: &str = "TTSP_LIBRARY";

/// What the dynamic loader looks for otherwise.
const LIBRARY_NAME: &str = "libttsp.so";

/// The loaded library. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Library {
    loaded: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    functions: Functions,
    path: PathBuf,
}

impl Library {
    /// Loads the library that [`LIBRARY_VARIABLE`] names, else (also if that is empty) the one that the dynamic loader finds.
    ///
    /// # Errors
    ///
    /// When there is none, when something that it needs is missing, or when it is of another version.
    pub fn load() -> Result<Self, LoadError> {
        // The loader takes an empty name for the program itself.
        let named = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty());
        let path = named.unwrap_or_else(|| LIBRARY_NAME.into());
        Self::load_from(Path::new(&path))
    }

    /// Loads the library at `path`.
    ///
    /// # Errors
    ///
    /// As [`Library::load`].
    pub fn load_from(path: &Path) -> Result<Self, LoadError> {
        // The loader would wait for what comes out of a pipe.
        if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            return Err(LoadError::Open { path: path.to_owned(), reason: "it is no file".to_owned() });
        }
        // SAFETY: initialisers of the library run. A file of this name that does harm when it is loaded could as well
        // have replaced this program.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| LoadError::Open { path: path.to_owned(), reason: error.to_string() })?;
        // Never unloaded: TT-NN leaves destructors that run at the end of the process, and would not be there any more.
        let library = ManuallyDrop::new(library);
        let symbol = |error: libloading::Error| LoadError::Symbol { path: path.to_owned(), reason: error.to_string() };
        // SAFETY: this function has had this signature since the first version.
        let version = unsafe { library.get::<unsafe extern "C" fn() -> u32>(b"ttsp_abi_version\0") }.map_err(symbol)?;
        // SAFETY: as above.
        let found = unsafe { version() };
        if found != abi::ABI_VERSION {
            return Err(LoadError::Version { path: path.to_owned(), found, expected: abi::ABI_VERSION });
        }
        // SAFETY: the version says that these are the signatures; the library stays where it is.
        let functions = unsafe { Functions::of(&library) }.map_err(symbol)?;
        Ok(Self { loaded: Arc::new(Loaded { functions, path: path.to_owned() }) })
    }

    /// The file, or the name by which the dynamic loader found it.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// Version of TT-NN that the library was compiled against.
    pub fn ttnn_version(&self) -> String {
        // SAFETY: the function takes nothing and gives a string that lives as long as the library.
        unsafe { CStr::from_ptr((self.functions().ttnn_version)()) }.to_string_lossy().into_owned()
    }

    /// Makes all devices opened afterwards mock Blackhole cards: operations are checked and planned as for a card, but
    /// nothing is computed. Before the first open.
    ///
    /// # Errors
    ///
    /// When TT-NN refuses.
    pub fn mock(&self) -> Result<(), Error> {
        // SAFETY: the function takes nothing.
        self.check("mock", unsafe { (self.functions().mock)() })
    }

    /// Opens a card.
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be opened.
    pub fn open(&self, options: &DeviceOptions) -> Result<Device, Error> {
        let mut out = std::ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        self.check("open device", unsafe { (self.functions().device_open)(&options.to_abi(), &mut out) })?;
        Ok(Device { handle: Rc::new(Handle { loaded: self.clone(), pointer: out }) })
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.loaded.functions
    }

    /// The error of the call that gave `status`, which was this thread's last.
    pub(crate) fn check(&self, operation: &'static str, status: c_int) -> Result<(), Error> {
        if status == abi::OK {
            return Ok(());
        }
        // SAFETY: the function takes nothing; the string is copied before this thread's next call.
        let reason = unsafe { CStr::from_ptr((self.functions().last_error)()) }.to_string_lossy();
        Err(Error { operation, reason: one_line(&reason) })
    }
}

/// An error's text for one line of a log: TT-NN writes several, and colours some.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(escape) = rest.find('\x1b') {
        line.push_str(&rest[..escape]);
        // ECMA-48: after the introducer, parameters, and a letter that ends the sequence.
        let sequence = rest[escape + 1..].trim_start_matches('[');
        let mut end = sequence.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').chars();
        end.next();
        rest = end.as_str();
    }
    line.push_str(rest);
    let words: Vec<&str> =
        line.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "no reason is given".to_owned() } else { words.join(" ") }
}

#[test]
fn an_error_is_one_line_of_plain_text() {
    for (text, line) in [
        ("Out of Memory: 5 B", "Out of Memory: 5 B"),
        ("first\n  second\r\n", "first second"),
        ("\x1b[31;1mred\x1b[0m, plain", "red, plain"),
        ("\x1b", "no reason is given"),
        ("a\x1b[", "a"),
        ("\x1b[3", "no reason is given"),
        ("\x1b[1é end", "end"),
        (" \n", "no reason is given"),
    ] {
        assert_eq!(one_line(text), line, "{text:?}");
    }
}
