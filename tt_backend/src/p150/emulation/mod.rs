//! A card without a card: each operation with the device's number formats, in tests only.
//!
//! - Values are rounded to bf16 after every operation, ties away from zero, as the packer does; a typecast, which the vector
//!   unit does, rounds ties to even. Or they stay fp32 where the tensor is. Sums are fp32.
//! - With two passes the multiplier takes 7 significant bits of its left operand, the map, and cuts the eighth off. It
//!   lines up groups of eight products, which rounds the small ones of a group; that is not modelled, and costs a product
//!   of matrices a correlation of 0.999999. Nor are the card's own exponential and reciprocal root.
//! - A convolution's bias is added in the matrix unit, which leaves 11 bits of the sum even where the output is fp32.
//! - Softmax reads fp32 through the matrix unit, which cuts it to 11 bits (TF32), and so does a permute that moves the last
//!   dimension of a row-major tensor. One in tiles does not, nor do other operations on fp32, which the vector unit does.
//! - Shapes, layouts and memory are checked as TT-NN does, and where TT-NN is lax, more strictly: what passes here is meant to
//!   pass there.
//! - Traces are modelled: while one is recorded nothing is computed; every program must have run before; nothing may be
//!   allocated for keeps, written or read.
//! - The memory of traces is modelled: a tensor that only traces know loses its values after the replay. A replay may overwrite
//!   what traces gave that were recorded after it, for they may lie where it had its own in between. While there is a
//!   trace nothing is allocated or run outside of it.
//!
//! `rules`: what is accepted. `compute`: what is computed. `gemm`: the product under both convolution and matmul. `matrix_unit`:
//! what numbers lose on their way.

pub(super) mod compute;
mod gemm;
mod matrix_unit;
mod rules;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;

use half::bf16;
use tt_metal_sys::{Compute, Conv2dOptions, DType, Layout, MaxPool2dOptions, Memory, Spec};

use super::device::{Device, DeviceError, Result};

/// Values of a tensor, row-major whatever its layout.
#[derive(Clone, Debug)]
pub(super) enum Values {
    /// fp32, or bf16, whose values are those of fp32 with the lower half zero.
    Float(Vec<f32>),
    /// 16-bit integers.
    Half(Vec<u16>),
    /// 32-bit integers.
    Word(Vec<u32>),
}

impl Values {
    /// Numbers rounded to a tensor's format as the host and the vector unit do it: ties to even.
    fn of(dtype: DType, mut values: Vec<f32>) -> Self {
        if dtype == DType::Bf16 {
            values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
        }
        Self::Float(values)
    }

    /// Results in a tensor's format as the packer writes them: ties away from zero.
    fn packed(dtype: DType, mut values: Vec<f32>) -> Self {
        if dtype == DType::Bf16 {
            values.iter_mut().for_each(|value| *value = matrix_unit::packed(*value));
        }
        Self::Float(values)
    }

    fn floats(&self) -> Vec<f32> {
        match self {
            Self::Float(values) => values.clone(),
            _ => panic!("the rules let integers pass as numbers"),
        }
    }

    fn half(&self) -> &[u16] {
        match self {
            Self::Half(values) => values,
            _ => panic!("the rules let something else pass as integers of 16 bits"),
        }
    }

    fn words(&self) -> &[u32] {
        match self {
            Self::Word(values) => values,
            _ => panic!("the rules let something else pass as integers of 32 bits"),
        }
    }
}

/// A tensor of the emulation.
#[derive(Clone)]
pub(super) struct Tensor(Rc<Inner>);

struct Inner {
    spec: Spec,
    /// `None` before the first operation that fills it, and after a trace is through with it.
    values: RefCell<Option<Values>>,
    /// How often traces name it.
    named: Cell<usize>,
    /// Number of the trace that gave it, and of the replay that filled it last; 0 outside of traces.
    trace: Cell<usize>,
    replay: Cell<usize>,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.spec)
    }
}

impl Tensor {
    fn new(spec: Spec, values: Option<Values>) -> Self {
        let values = RefCell::new(values);
        Self(Rc::new(Inner { spec, values, named: Cell::new(0), trace: Cell::new(0), replay: Cell::new(0) }))
    }

    fn values(&self, operation: &'static str) -> Result<std::cell::Ref<'_, Values>> {
        std::cell::Ref::filter_map(self.0.values.borrow(), Option::as_ref)
            .map_err(|_| refuse(operation, format!("{self:?} has no values: freed, or never written")))
    }
}

/// A convolution with its weights, `[kernel row, kernel column, in][out]`.
#[derive(Debug)]
pub(super) struct Conv {
    options: Conv2dOptions,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

type Work = Rc<dyn Fn(&[Tensor]) -> Result<Vec<Values>>>;

/// One recorded operation.
#[derive(Clone)]
struct Step {
    name: &'static str,
    work: Work,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Step {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs.iter().chain(&self.outputs)
    }
}

/// A recorded sequence.
pub(super) struct Trace {
    /// Traces are counted from 1 in the order in which they are recorded.
    number: usize,
    steps: Vec<Step>,
    /// How many traces there are.
    alive: Rc<Cell<usize>>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
        self.steps.iter().flat_map(Step::tensors).for_each(|tensor| tensor.0.named.update(|count| count - 1));
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps.iter().map(|step| step.name)).finish()
    }
}

/// The emulated card.
#[derive(Default)]
pub(super) struct Emulation {
    /// Operations with shapes and options that have run.
    programs: RefCell<HashSet<String>>,
    recording: RefCell<Option<Trace>>,
    /// How many traces there are, and were.
    traces: Rc<Cell<usize>>,
    recorded: Cell<usize>,
    /// Numbers of the traces that were replayed, in that order.
    replayed: RefCell<Vec<usize>>,
    /// What makes the next replay fail, for tests of failures.
    pub(super) failure: RefCell<Option<DeviceError>>,
    /// The operation that shifts its values by one, for tests of the self test.
    pub(super) fault: Cell<Option<&'static str>>,
    /// What is done in [`Device::synchronize`], and when the card is closed.
    pub(super) on_synchronize: Cell<Option<fn()>>,
    pub(super) on_close: Cell<Option<Box<dyn FnOnce()>>>,
}

impl Drop for Emulation {
    fn drop(&mut self) {
        if let Some(closes) = self.on_close.take() {
            closes();
        }
    }
}

impl fmt::Debug for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Emulation")
    }
}

pub(super) fn refuse(operation: &'static str, reason: impl Into<String>) -> DeviceError {
    DeviceError { operation, reason: reason.into() }
}

impl Emulation {
    /// Number of programs that have been compiled.
    pub(super) fn programs(&self) -> usize {
        self.programs.borrow().len()
    }

    /// Numbers of the traces that were replayed, in that order.
    pub(super) fn replayed(&self) -> Vec<usize> {
        self.replayed.borrow().clone()
    }

    /// What only tests write: a tensor of any layout.
    pub(super) fn overwrite(&self, to: &Tensor, data: &[f32]) {
        *to.0.values.borrow_mut() = Some(match to.0.spec.dtype {
            DType::Bf16 | DType::F32 => Values::of(to.0.spec.dtype, data.to_vec()),
            DType::U16 => Values::Half(data.iter().map(|&value| value as u16).collect()),
            DType::U32 => Values::Word(data.iter().map(|&value| value as u32).collect()),
        });
    }

    /// The values of a tensor of any layout, integers as numbers.
    pub(super) fn values(&self, of: &Tensor) -> Result<Vec<f32>> {
        Ok(match &*of.values("values")? {
            Values::Float(values) => values.clone(),
            Values::Half(values) => values.iter().map(|&value| f32::from(value)).collect(),
            Values::Word(values) => values.iter().map(|&value| value as f32).collect(),
        })
    }

    /// Runs an operation, or records it.
    fn run(
        &self,
        name: &'static str,
        options: impl fmt::Debug,
        inputs: &[&Tensor],
        outputs: &[Spec],
        work: impl Fn(&[Tensor]) -> Result<Vec<Values>> + 'static,
    ) -> Result<Vec<Tensor>> {
        let outputs: Vec<Tensor> = outputs.iter().map(|&spec| Tensor::new(spec, None)).collect();
        let recording = self.recording.borrow().as_ref().map_or(0, |trace| trace.number);
        outputs.iter().for_each(|output| output.0.trace.set(recording));
        self.run_into(name, options, inputs, &outputs, work)?;
        Ok(outputs)
    }

    fn run_into(
        &self,
        name: &'static str,
        options: impl fmt::Debug,
        inputs: &[&Tensor],
        outputs: &[Tensor],
        work: impl Fn(&[Tensor]) -> Result<Vec<Values>> + 'static,
    ) -> Result<()> {
        let program = format!("{name} {options:?} {inputs:?}");
        let inputs = inputs.iter().map(|&tensor| tensor.clone()).collect();
        let step = Step { name, work: Rc::new(work), inputs, outputs: outputs.to_vec() };
        if let Some(trace) = self.recording.borrow_mut().as_mut() {
            if !self.programs.borrow().contains(&program) {
                return Err(refuse(name, format!("compiled while a trace is recorded: {program}")));
            }
            step.tensors().for_each(|tensor| tensor.0.named.update(|count| count + 1));
            trace.steps.push(step);
            return Ok(());
        }
        self.not_beside_traces(name)?;
        self.programs.borrow_mut().insert(program);
        self.execute(&step)
    }

    /// [`run`](Self::run) for an operation on numbers; its result is rounded to the output's format.
    fn compute(
        &self,
        name: &'static str,
        options: impl fmt::Debug,
        inputs: &[&Tensor],
        output: Spec,
        work: impl Fn(&mut Vec<Vec<f32>>) -> Vec<f32> + 'static,
    ) -> Result<Tensor> {
        let work = move |inputs: &[Tensor]| {
            let inputs = inputs.iter().map(|input| Ok(input.values(name)?.floats()));
            Ok(vec![Values::packed(output.dtype, work(&mut inputs.collect::<Result<_>>()?))])
        };
        Ok(only(self.run(name, options, inputs, &[output], work)?))
    }

    /// [`compute`](Self::compute) on elements in the same place of two tensors.
    fn elementwise(
        &self,
        name: &'static str,
        a: &Tensor,
        b: &Tensor,
        work: impl Fn(f32, f32) -> f32 + 'static,
    ) -> Result<Tensor> {
        let output = rules::elementwise(name, a.0.spec, b.0.spec)?;
        self.compute(name, (), &[a, b], output, move |inputs| {
            inputs[0].iter().zip(&inputs[1]).map(|(&a, &b)| work(a, b)).collect()
        })
    }

    /// [`compute`](Self::compute) for an operation that only moves: where each element of the output comes from.
    fn pick(
        &self,
        name: &'static str,
        options: impl fmt::Debug,
        input: &Tensor,
        output: Spec,
        source: impl Fn([usize; 4]) -> [usize; 4] + 'static,
    ) -> Result<Tensor> {
        let shape = input.0.spec.shape;
        self.compute(name, options, &[input], output, move |inputs| {
            compute::pick(&inputs[0], output.shape, |at| compute::flat(shape, source(at)))
        })
    }

    fn execute(&self, step: &Step) -> Result<()> {
        step.inputs.iter().try_for_each(|input| self.intact(step.name, input))?;
        let mut values = (step.work)(&step.inputs)?;
        if self.fault.get() == Some(step.name) {
            values.iter_mut().for_each(|values| match values {
                Values::Float(values) => values.rotate_left(1),
                Values::Half(values) => values.rotate_left(1),
                Values::Word(values) => values.rotate_left(1),
            });
        }
        for (output, values) in step.outputs.iter().zip(values) {
            *output.0.values.borrow_mut() = Some(values);
            output.0.replay.set(self.replayed.borrow().len());
        }
        Ok(())
    }

    /// Whether no trace was replayed that may have overwritten what another one gave.
    fn intact(&self, operation: &'static str, tensor: &Tensor) -> Result<()> {
        let (trace, replay) = (tensor.0.trace.get(), tensor.0.replay.get());
        match self.replayed.borrow().iter().skip(replay).find(|&&replayed| replayed < trace) {
            Some(other) => Err(refuse(
                operation,
                format!("{tensor:?} of trace {trace} may be overwritten by a replay of trace {other}"),
            )),
            None => Ok(()),
        }
    }

    /// What is allocated while there are traces may lie where one of them has its own.
    fn not_beside_traces(&self, operation: &'static str) -> Result<()> {
        self.not_while_recording(operation)?;
        match self.traces.get() {
            0 => Ok(()),
            traces => Err(refuse(operation, format!("there are {traces} traces, which may overwrite it"))),
        }
    }

    fn not_while_recording(&self, operation: &'static str) -> Result<()> {
        match *self.recording.borrow() {
            Some(_) => Err(refuse(operation, "not while a trace is recorded")),
            None => Ok(()),
        }
    }

    fn fill(&self, operation: &'static str, to: &Tensor, values: Values, bytes: usize) -> Result<()> {
        self.not_while_recording(operation)?;
        rules::host_access(operation, to.0.spec, bytes)?;
        *to.0.values.borrow_mut() = Some(values);
        Ok(())
    }
}

/// The one output of an operation that has one.
fn only(mut outputs: Vec<Tensor>) -> Tensor {
    outputs.remove(0)
}

impl Device for Emulation {
    type Tensor = Tensor;
    type Conv = Rc<Conv>;
    type Trace = Trace;

    fn spec(&self, tensor: &Tensor) -> Spec {
        tensor.0.spec
    }

    fn allocate(&self, spec: Spec) -> Result<Tensor> {
        self.not_beside_traces("allocate")?;
        // Undefined values, which here are NaN: they would be noticed wherever they came out.
        let values = match spec.dtype {
            DType::Bf16 | DType::F32 => Values::Float(vec![f32::NAN; spec.volume()]),
            DType::U16 => Values::Half(vec![0; spec.volume()]),
            DType::U32 => Values::Word(vec![0; spec.volume()]),
        };
        Ok(Tensor::new(spec, Some(values)))
    }

    fn constant(&self, spec: Spec, values: &[f32]) -> Result<Tensor> {
        self.not_beside_traces("constant")?;
        if spec.dtype != DType::Bf16 || values.len() != spec.volume() {
            return Err(refuse("constant", format!("{} values for {spec:?}", values.len())));
        }
        Ok(Tensor::new(spec, Some(Values::of(spec.dtype, values.to_vec()))))
    }

    fn write(&self, to: &Tensor, data: &[u16]) -> Result<()> {
        let values = match to.0.spec.dtype {
            DType::Bf16 => Values::Float(data.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect()),
            _ => Values::Half(data.to_vec()),
        };
        self.fill("write", to, values, size_of_val(data))
    }

    fn write_u32(&self, to: &Tensor, data: &[u32]) -> Result<()> {
        self.fill("write", to, Values::Word(data.to_vec()), size_of_val(data))
    }

    fn read(&self, from: &Tensor, data: &mut [u16]) -> Result<()> {
        self.not_while_recording("read")?;
        rules::host_access("read", from.0.spec, size_of_val(data))?;
        self.intact("read", from)?;
        match &*from.values("read")? {
            Values::Float(values) => {
                data.iter_mut().zip(values).for_each(|(bits, &value)| *bits = bf16::from_f32(value).to_bits());
            }
            values => data.copy_from_slice(values.half()),
        }
        Ok(())
    }

    fn read_f32(&self, from: &Tensor, data: &mut [f32]) -> Result<()> {
        self.not_while_recording("read")?;
        rules::host_access("read", from.0.spec, size_of_val(data))?;
        self.intact("read", from)?;
        data.copy_from_slice(&from.values("read")?.floats());
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        if let Some(done) = self.on_synchronize.get() {
            done();
        }
        self.not_while_recording("synchronize")
    }

    fn record<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(Trace, T)> {
        self.not_while_recording("begin trace")?;
        self.traces.update(|count| count + 1);
        self.recorded.update(|count| count + 1);
        let trace = Trace { number: self.recorded.get(), steps: Vec::new(), alive: Rc::clone(&self.traces) };
        *self.recording.borrow_mut() = Some(trace);
        let done = work();
        let trace = self.recording.borrow_mut().take().expect("only this function ends it");
        Ok((trace, done?))
    }

    fn replay(&self, trace: &Trace) -> Result<()> {
        self.not_while_recording("replay trace")?;
        if let Some(failure) = self.failure.borrow_mut().take() {
            return Err(failure);
        }
        self.replayed.borrow_mut().push(trace.number);
        for step in &trace.steps {
            self.execute(step)?;
        }
        // What nobody holds but traces has been given to somebody else.
        for tensor in trace.steps.iter().flat_map(Step::tensors) {
            if Rc::strong_count(&tensor.0) == tensor.0.named.get() {
                *tensor.0.values.borrow_mut() = None;
            }
        }
        Ok(())
    }

    fn prepare_conv2d(&self, options: &Conv2dOptions, weights: &[f32], bias: &[f32]) -> Result<Rc<Conv>> {
        self.not_beside_traces("prepare conv2d")?;
        rules::conv2d_weights(options, weights.len(), bias.len())?;
        let Conv2dOptions { in_channels, out_channels, kernel: [rows, columns], .. } = *options;
        let rounded = |value: f32| bf16::from_f32(value).to_f32();
        let taps = rows * columns;
        let mut packed = vec![0.0; weights.len()];
        for (index, &weight) in weights.iter().enumerate() {
            let (output, input, tap) = (index / (in_channels * taps), index / taps % in_channels, index % taps);
            packed[(tap * in_channels + input) * out_channels + output] = rounded(weight);
        }
        let bias = bias.iter().copied().map(rounded).collect();
        Ok(Rc::new(Conv { options: *options, weights: packed, bias }))
    }

    fn conv2d(&self, conv: &Rc<Conv>, input: &Tensor) -> Result<Tensor> {
        let output = rules::conv2d(&conv.options, input.0.spec)?;
        let conv = Rc::clone(conv);
        self.compute("conv2d", conv.options, &[input], output, move |inputs| {
            matrix_unit::left_operand(conv.options.compute, &mut inputs[0]);
            compute::conv2d(&conv.options, &conv.weights, &conv.bias, &inputs[0], matrix_unit::add)
        })
    }

    fn max_pool2d(&self, input: &Tensor, options: &MaxPool2dOptions) -> Result<Tensor> {
        let output = rules::max_pool2d(options, input.0.spec)?;
        let options = *options;
        self.compute("max_pool2d", options, &[input], output, move |inputs| compute::max_pool2d(&options, &inputs[0]))
    }

    fn matmul(&self, a: &Tensor, b: &Tensor, compute: Compute, dtype: DType) -> Result<Tensor> {
        let (a_shape, b_shape) = (a.0.spec.shape, b.0.spec.shape);
        let output = rules::matmul(a.0.spec, b.0.spec, dtype)?;
        self.compute("matmul", (compute, dtype), &[a, b], output, move |inputs| {
            matrix_unit::left_operand(compute, &mut inputs[0]);
            compute::matmul(a_shape, b_shape, &inputs[0], &inputs[1])
        })
    }

    fn softmax(&self, input: &Tensor, _: Compute) -> Result<Tensor> {
        let spec = input.0.spec;
        rules::in_tiles("softmax", spec)?;
        self.compute("softmax", (), &[input], Spec { memory: Memory::Dram, ..spec }, move |inputs| {
            inputs[0].chunks_exact_mut(spec.shape[3]).for_each(compute::softmax);
            inputs.remove(0)
        })
    }

    fn rms_norm(&self, input: &Tensor, gamma: &Tensor, epsilon: f32, _: Compute) -> Result<Tensor> {
        let spec = input.0.spec;
        rules::rms_norm(spec, gamma.0.spec)?;
        self.compute("rms_norm", epsilon, &[input, gamma], Spec { memory: Memory::Dram, ..spec }, move |inputs| {
            let gamma = inputs.remove(1);
            inputs[0].chunks_exact_mut(spec.shape[3]).for_each(|row| compute::rms_norm(row, &gamma, epsilon));
            inputs.remove(0)
        })
    }

    fn slice(&self, input: &Tensor, begin: [usize; 4], end: [usize; 4]) -> Result<Tensor> {
        let output = rules::slice(input.0.spec, begin, end)?;
        self.pick("slice", (begin, end), input, output, move |at| std::array::from_fn(|i| at[i] + begin[i]))
    }

    fn reshape(&self, input: &Tensor, shape: [usize; 4]) -> Result<Tensor> {
        let output = rules::reshape(input.0.spec, shape)?;
        let work = |inputs: &[Tensor]| Ok(vec![inputs[0].values("reshape")?.clone()]);
        Ok(only(self.run("reshape", shape, &[input], &[output], work)?))
    }

    fn permute(&self, input: &Tensor, order: [usize; 4]) -> Result<Tensor> {
        let output = rules::permute(input.0.spec, order)?;
        let through_the_matrix_unit = input.0.spec.layout == Layout::RowMajor && order[3] != 3;
        let shape = input.0.spec.shape;
        self.compute("permute", order, &[input], output, move |inputs| {
            if through_the_matrix_unit {
                inputs[0].iter_mut().for_each(|value| *value = matrix_unit::tf32(*value));
            }
            compute::pick(&inputs[0], output.shape, |to| {
                let mut at = [0; 4];
                for (&dimension, position) in order.iter().zip(to) {
                    at[dimension] = position;
                }
                compute::flat(shape, at)
            })
        })
    }

    fn to_layout(&self, input: &Tensor, layout: Layout) -> Result<Tensor> {
        let output = Spec { layout, ..input.0.spec };
        let work = |inputs: &[Tensor]| Ok(vec![inputs[0].values("to_layout")?.clone()]);
        Ok(only(self.run("to_layout", layout, &[input], &[output], work)?))
    }

    fn typecast(&self, input: &Tensor, dtype: DType) -> Result<Tensor> {
        let output = rules::typecast(input.0.spec, dtype)?;
        let work = move |inputs: &[Tensor]| Ok(vec![Values::of(dtype, inputs[0].values("typecast")?.floats())]);
        Ok(only(self.run("typecast", dtype, &[input], &[output], work)?))
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.elementwise("add", a, b, |a, b| a + b)
    }

    fn add_scalar(&self, input: &Tensor, value: f32) -> Result<Tensor> {
        rules::in_tiles("add", input.0.spec)?;
        self.compute("add", value, &[input], input.0.spec, move |inputs| {
            inputs.remove(0).into_iter().map(|element| element + value).collect()
        })
    }

    fn floor(&self, input: &Tensor) -> Result<Tensor> {
        rules::in_tiles("floor", input.0.spec)?;
        self.compute("floor", (), &[input], input.0.spec, |inputs| {
            inputs.remove(0).into_iter().map(f32::floor).collect()
        })
    }

    fn eq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.elementwise("eq", a, b, |a, b| f32::from(u8::from(a == b)))
    }

    fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.elementwise("multiply", a, b, |a, b| a * b)
    }

    fn topk(&self, input: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
        let spec = input.0.spec;
        let outputs = rules::topk(spec, k)?;
        let work = move |inputs: &[Tensor]| {
            let values = inputs[0].values("topk")?.floats();
            let best = values.chunks_exact(spec.shape[3]).flat_map(|row| compute::topk(row, k));
            let (indices, best): (Vec<u16>, Vec<f32>) = best.unzip();
            Ok(vec![Values::of(spec.dtype, best), Values::Half(indices)])
        };
        let mut outputs = self.run("topk", k, &[input], &outputs, work)?;
        let indices = outputs.remove(1);
        Ok((only(outputs), indices))
    }

    fn gather(&self, input: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let (spec, chosen) = (input.0.spec, indices.0.spec);
        let output = rules::gather(spec, chosen)?;
        let work = move |inputs: &[Tensor]| {
            let (values, indices) = (inputs[0].values("gather")?.floats(), inputs[1].values("gather")?);
            let rows = values.chunks_exact(spec.shape[3]).zip(indices.half().chunks_exact(chosen.shape[3]));
            let gathered = rows.flat_map(|(row, indices)| indices.iter().map(|&index| row[usize::from(index)]));
            Ok(vec![Values::of(spec.dtype, gathered.collect())])
        };
        Ok(only(self.run("gather", (), &[input, indices], &[output], work)?))
    }

    fn embedding(&self, indices: &Tensor, table: &Tensor) -> Result<Tensor> {
        let output = rules::embedding(indices.0.spec, table.0.spec)?;
        let [_, _, rows, width] = table.0.spec.shape;
        let work = move |inputs: &[Tensor]| {
            let (indices, table) = (inputs[0].values("embedding")?, inputs[1].values("embedding")?);
            let table = table.floats();
            let mut out = Vec::new();
            for &index in indices.words() {
                let index = index as usize;
                if index >= rows {
                    return Err(refuse("embedding", format!("row {index} of a table of {rows}")));
                }
                out.extend_from_slice(&table[index * width..][..width]);
            }
            Ok(vec![Values::of(DType::Bf16, out)])
        };
        Ok(only(self.run("embedding", (), &[indices, table], &[output], work)?))
    }

    fn copy(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        rules::copy(from.0.spec, to.0.spec)?;
        let work = |inputs: &[Tensor]| Ok(vec![inputs[0].values("copy")?.clone()]);
        self.run_into("copy", to.0.spec, &[from], std::slice::from_ref(to), work)
    }
}
