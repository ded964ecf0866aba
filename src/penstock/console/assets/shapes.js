// Shapes: filtered copies of tables that clients follow over HTTP.

import { h } from './dom.js'
import { act, app, draw, load, post, toast } from './app.js'
import { bytes, count, moment } from './format.js'
import { card, empty, problem, state, table } from './parts.js'

const chosen = { text: '', shown: 100 }
let revealed = null

// What conditions compare with is hidden until somebody who may asks for it, which is written down.
async function reveal() {
  try {
    const told = await post('values', { of: 'shapes', fields: {} })
    revealed = new Map(told.shapes.map((each) => [each.handle, each.where]))
  } catch (error) {
    toast(error.message, true)
  }
  draw()
}

const hidden = () => app.session.may_act && (revealed
  ? h('button', { class: 'quiet', onclick: () => { revealed = null; draw() } }, 'Hide values')
  : h('button', { class: 'quiet', onclick: reveal, title: 'That you asked is written to the audit log' }, 'Show values'))

const condition = (each) => revealed?.get(each.handle) ?? each.where ?? 'all rows'

export function shapes() {
  if (!app.session.pipeline.has_shapes) return card('Shapes', null, empty('No shapes here', 'With ', h('code', null, 'lanes.shapes'), ' in the pipeline file, filtered copies of tables are served over HTTP.'))
  const found = load('shapes', 'shapes', {}, { every: 3000 })
  const all = found.value?.shapes ?? []
  const some = all.filter((each) => `${each.table} ${condition(each)} ${each.handle}`.includes(chosen.text.trim()))
  return card('Shapes', { key: 'shapes' },
    (found.error || found.value?.problem) && problem(found.error ?? found.value.problem),
    h('div', { class: 'filters' }, h('input', { type: 'search', placeholder: 'Filter by table, condition or handle  ( / )', 'aria-label': 'Filter', oninput: (event) => { chosen.text = event.target.value; draw() } }), h('span', { class: 'quiet' }, found.value && `${count(found.value.total)} shape${found.value.total === 1 ? '' : 's'}`), hidden()),
    !found.value && !found.error ? h('p', { class: 'quiet' }, 'Asking the live lane…')
    : some.length === 0 ? empty(all.length ? 'None like that' : 'None yet', all.length ? 'No shape matches the filter.' : 'A shape is made when the first client asks for it.')
    : table([{ name: 'table' }, { name: 'definition' }, { name: 'state' }, { name: 'clients', right: true }, { name: 'size', right: true }, { name: 'last read' }, { name: '' }],
        some.slice(0, chosen.shown).map((each) => ({
          key: each.handle,
          cells: [
            h('span', { class: 'name' }, each.table, h('small', null, each.handle)),
            h('span', { class: 'name' }, h('code', { class: 'long' }, condition(each)), h('small', null, [each.columns.join(', '), each.replica === 'full' && 'replica=full', each.log !== 'full' && `log=${each.log}`, `up to ${each.offset}`, each.hidden && 'of a subquery'].filter(Boolean).join(' · '))),
            state(each.state, each.state === 'ready' || each.state === 'active' ? 'good' : 'busy'), count(each.waiting), bytes(each.bytes_on_disk), moment(new Date(each.last_read * 1000).toISOString()),
            app.session.may_act && !each.hidden && h('span', { class: 'actions' }, h('button', { class: 'small', onclick: () => act('shape.drop', { handle: each.handle }, { title: `Drop this shape of ${each.table}?`, text: 'Its clients fetch it anew, all of them at once.', button: 'Drop', danger: true }) }, 'Drop')),
          ],
        }))),
    some.length > chosen.shown && h('button', { class: 'quiet more', onclick: () => { chosen.shown += 200; draw() } }, 'Show more'))
}
