// Audit: who did what by the console, and who asked for values.

import { h } from './dom.js'
import { load } from './app.js'
import { moment } from './format.js'
import { card, empty, problem, state, table } from './parts.js'

const LEVELS = { done: 'good', asked: 'busy', failed: 'bad', refused: 'bad' }

export function audit() {
  const found = load('audit', 'audit', {}, { every: 3000 })
  const known = new Set(['at', 'who', 'from', 'what', 'outcome'])
  return card('Audit', { key: 'audit' },
    h('p', { class: 'about-text' }, 'Every action is written down before it is begun and again when it has ended; so is who asked for values of rows, and who failed to log in.'),
    found.error ? problem(found.error) : !found.value ? h('p', { class: 'quiet' }, 'Reading…') : found.value.audit.length === 0 ? empty('Nothing yet', 'Nobody has done anything by the console.')
    : table([{ name: 'when' }, { name: 'who' }, { name: 'what' }, { name: 'of' }, { name: 'outcome' }, { name: 'from' }],
        found.value.audit.map((each, index) => ({ key: `${each.at} ${index}`, cells: [moment(each.at), each.who || '–', each.what, Object.entries(each).filter(([name]) => !known.has(name)).map(([name, value]) => `${name}: ${value}`).join(', '), state(each.outcome, LEVELS[each.outcome]), each.from] }))))
}
