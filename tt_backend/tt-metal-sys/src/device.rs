//! A device, and what lives on it: tensors, events, traces.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use crate::abi;
use crate::{DeviceInfo, Element, Error, Library, Spec, Usage};

/// An open device. Clones are the same device, which is closed when the last clone and everything made with it is gone.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) handle: Rc<Handle>,
}

/// What closes the device.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) loaded: Library,
    pub(crate) pointer: *mut abi::Device,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: opened by this library and not closed before. An error leaves nothing that could be done.
        unsafe { (self.loaded.functions().device_close)(self.pointer) };
    }
}

/// A tensor on a device. Clones are the same tensor; its memory is free when the last one is gone.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) inner: Rc<TensorHandle>,
}

#[derive(Debug)]
pub(crate) struct TensorHandle {
    pub(crate) device: Device,
    pub(crate) pointer: *mut abi::Tensor,
    spec: Spec,
}

impl Drop for TensorHandle {
    fn drop(&mut self) {
        // SAFETY: made by this library, and freed here only.
        unsafe { (self.device.functions().tensor_free)(self.pointer) };
    }
}

impl Tensor {
    /// Shape, number format, layout and place.
    pub fn spec(&self) -> Spec {
        self.inner.spec
    }

    pub(crate) fn pointer(&self) -> *const abi::Tensor {
        self.inner.pointer
    }

    pub(crate) fn device(&self) -> &Device {
        &self.inner.device
    }
}

/// A point in a queue's commands.
#[derive(Debug)]
pub struct Event {
    device: Device,
    pointer: *mut abi::Event,
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by this library, and freed here only.
        unsafe { (self.device.functions().event_free)(self.pointer) };
    }
}

/// A recorded sequence of operations. Dropping it releases it.
#[derive(Debug)]
pub struct Trace {
    device: Device,
    pointer: *mut abi::Trace,
}

impl Drop for Trace {
    fn drop(&mut self) {
        // SAFETY: made by this library, and released here only. An error leaves nothing that could be done.
        unsafe { (self.device.functions().trace_release)(self.pointer) };
    }
}

impl Trace {
    /// Runs the operations again, on the memory that they were recorded with. Does not wait for their end.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn replay(&self) -> Result<(), Error> {
        // SAFETY: the trace is alive.
        self.device.check("replay trace", unsafe { (self.device.functions().trace_replay)(self.pointer) })
    }
}

impl Device {
    pub(crate) fn functions(&self) -> &abi::Functions {
        self.handle.loaded.functions()
    }

    pub(crate) fn check(&self, operation: &'static str, status: c_int) -> Result<(), Error> {
        self.handle.loaded.check(operation, status)
    }

    pub(crate) fn pointer(&self) -> *mut abi::Device {
        self.handle.pointer
    }

    /// A handle keeps its own device open, and a tensor must not outlive the device whose memory it has: so operands are all
    /// on this one.
    pub(crate) fn owns(&self, operation: &'static str, operands: &[&Tensor]) -> Result<(), Error> {
        if operands.iter().all(|tensor| Rc::ptr_eq(&tensor.device().handle, &self.handle)) {
            return Ok(());
        }
        Err(Error { operation, reason: "a tensor is on another device".to_owned() })
    }

    /// Wraps the tensor that `call` makes.
    pub(crate) fn tensor(
        &self,
        operation: &'static str,
        call: impl FnOnce(*mut *mut abi::Tensor) -> c_int,
    ) -> Result<Tensor, Error> {
        let mut out = std::ptr::null_mut();
        self.check(operation, call(&mut out))?;
        self.adopt(operation, out)
    }

    /// Takes over a tensor that the library has made.
    pub(crate) fn adopt(&self, operation: &'static str, pointer: *mut abi::Tensor) -> Result<Tensor, Error> {
        let mut spec = abi::Spec::default();
        // SAFETY: the library has just made the tensor.
        let status = unsafe { (self.functions().tensor_spec)(pointer, &mut spec) };
        let spec = self.check(operation, status).and_then(|()| {
            Spec::from_abi(&spec)
                .ok_or_else(|| Error { operation, reason: format!("gave a tensor of an unknown kind: {spec:?}") })
        });
        match spec {
            Ok(spec) => Ok(Tensor { inner: Rc::new(TensorHandle { device: self.clone(), pointer, spec }) }),
            Err(error) => {
                // SAFETY: made by this library; no handle to it exists.
                unsafe { (self.functions().tensor_free)(pointer) };
                Err(error)
            }
        }
    }

    /// What the device is and has done.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn info(&self) -> Result<DeviceInfo, Error> {
        let mut info = abi::DeviceInfo::default();
        // SAFETY: the device is open, and the pointer valid for the call.
        self.check("device info", unsafe { (self.functions().device_info_get)(self.pointer(), &mut info) })?;
        Ok(DeviceInfo::from_abi(&info))
    }

    /// Waits for everything that was given to all queues.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the device is open.
        self.check("synchronize", unsafe { (self.functions().synchronize)(self.pointer()) })
    }

    /// A tensor of undefined values.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub fn allocate(&self, spec: Spec) -> Result<Tensor, Error> {
        // SAFETY: the device is open, and the pointers valid for the call.
        self.tensor("allocate", |out| unsafe {
            (self.functions().tensor_allocate)(self.pointer(), &spec.to_abi(), out)
        })
    }

    /// A bf16 tensor with these values, row-major, rounded to the nearest.
    ///
    /// # Errors
    ///
    /// When the count is not the shape's, or there is no room.
    pub fn constant(&self, spec: Spec, values: &[f32]) -> Result<Tensor, Error> {
        // SAFETY: the device is open, and the pointers valid for the call.
        self.tensor("constant", |out| unsafe {
            (self.functions().tensor_constant)(self.pointer(), &spec.to_abi(), values.as_ptr(), values.len(), out)
        })
    }

    /// Overwrites a row-major tensor through a queue. The data is copied before the call returns; it arrives in its turn.
    ///
    /// # Errors
    ///
    /// When the lengths differ, the tensor is not row-major or on another device, or the device fails.
    pub fn write<T: Element>(&self, queue: u32, to: &Tensor, data: &[T]) -> Result<(), Error> {
        self.owns("write", &[to])?;
        // SAFETY: device and tensor are alive, and the data valid for the call.
        let status = unsafe {
            (self.functions().write)(self.pointer(), queue, to.pointer(), data.as_ptr().cast(), size_of_val(data))
        };
        self.check("write", status)
    }

    /// Reads a row-major tensor through a queue, and waits for it.
    ///
    /// # Errors
    ///
    /// As [`Device::write`].
    pub fn read<T: Element>(&self, queue: u32, from: &Tensor, data: &mut [T]) -> Result<(), Error> {
        self.owns("read", &[from])?;
        // SAFETY: device and tensor are alive, the data valid for the call, and any bytes are values of an element.
        let status = unsafe {
            let bytes = size_of_val(data);
            (self.functions().read)(self.pointer(), queue, from.pointer(), data.as_mut_ptr().cast(), bytes)
        };
        self.check("read", status)
    }

    /// The values of a tensor of any layout, number format and place, row-major; integers above 2^24 are rounded. For looking
    /// at what an operation gave: TT-NN's host code converts, which is slow.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn values(&self, of: &Tensor) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; of.spec().volume()];
        // SAFETY: the tensor is alive, and the values valid for the call.
        let status = unsafe { (self.functions().tensor_values)(of.pointer(), values.as_mut_ptr(), values.len()) };
        self.check("values", status)?;
        Ok(values)
    }

    /// The point in a queue that it has reached when everything given to it so far is done.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn record_event(&self, queue: u32) -> Result<Event, Error> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the device is open, and the pointer valid for the call.
        self.check("record event", unsafe { (self.functions().event_record)(self.pointer(), queue, &mut out) })?;
        Ok(Event { device: self.clone(), pointer: out })
    }

    /// Lets everything that is given to a queue from now on wait for an event of another queue.
    ///
    /// # Errors
    ///
    /// When the event is another device's, or the device fails.
    pub fn wait_for_event(&self, queue: u32, event: &Event) -> Result<(), Error> {
        if !Rc::ptr_eq(&event.device.handle, &self.handle) {
            return Err(Error { operation: "wait for event", reason: "it is another device's".to_owned() });
        }
        // SAFETY: device and event are alive.
        self.check("wait for event", unsafe { (self.functions().event_wait)(self.pointer(), queue, event.pointer) })
    }

    /// Records the operations that `work` does instead of running them. They must have run before, with the same shapes,
    /// and must not write from the host.
    ///
    /// # Errors
    ///
    /// Those of `work`, and when TT-NN refuses.
    pub fn record_trace<T, E: From<Error>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<(Trace, T), E> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the device is open, and the pointer valid for the call.
        self.check("begin trace", unsafe { (self.functions().trace_begin)(self.pointer(), &mut out) })?;
        let trace = Trace { device: self.clone(), pointer: out };
        // Ended even if the work fails or panics: a device that records for ever is of no use.
        let done = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: the trace was begun and not ended.
        let ended = self.check("end trace", unsafe { (self.functions().trace_end)(trace.pointer) });
        let done = done.unwrap_or_else(|panic| resume_unwind(panic))?;
        ended?;
        Ok((trace, done))
    }

    /// Lets TT-NN check and plan the operations that `work` does, without allocating or running anything, and says what
    /// they would have used. Tensors that they give have no memory.
    ///
    /// # Errors
    ///
    /// Those of `work`, and when TT-NN refuses.
    pub fn dry_run<T, E: From<Error>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<(Usage, T), E> {
        // SAFETY: the device is open.
        self.check("begin dry run", unsafe { (self.functions().dry_run_begin)(self.pointer()) })?;
        let done = catch_unwind(AssertUnwindSafe(work));
        let mut usage = abi::Usage::default();
        // SAFETY: a dry run was begun, and the pointer is valid for the call.
        let ended = self.check("end dry run", unsafe { (self.functions().dry_run_end)(self.pointer(), &mut usage) });
        let done = done.unwrap_or_else(|panic| resume_unwind(panic))?;
        ended?;
        Ok((Usage::from_abi(&usage), done))
    }
}
