import{a,b,c}from"./chunk-N3XXEZZL.js";import"./chunk-SDN4XMB3.js";import"./chunk-SVPYO5R6.js";import"./chunk-G5JQHZRG.js";import"./chunk-T5PSASGQ.js";export{c as Heads,b as Train,a as joined};
